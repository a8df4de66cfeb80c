package manager

import (
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// TestReportsWithSNATAreReadWhole: a report that contains SNAT fields and any other field is not
// taken for one about SNAT alone, because the rest of such a report is not read.
func TestReportsWithSNATAreReadWhole(t *testing.T) {
	snatFields := map[protoreflect.Name]bool{"snat_asks": true, "snat_returns": true, "snat_ack": true}
	everywhere := map[protoreflect.Name]bool{"synced_revision": true, "epoch": true}
	report := func() *apiv1.NodeReport {
		return &apiv1.NodeReport{SnatAck: &apiv1.SnatAck{Revision: 1}, SyncedRevision: 1, Epoch: 1}
	}
	if says, alone := saysSNAT(report()); !says || !alone {
		t.Errorf("an acknowledgement: says %v, alone %v, want both", says, alone)
	}
	fields := report().ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if snatFields[f.Name()] || everywhere[f.Name()] {
			continue
		}
		r := report()
		switch m := r.ProtoReflect(); {
		case f.IsList() || f.IsMap():
			t.Fatalf("%s: a list: add a case to this test", f.Name())
		case f.Kind() == protoreflect.MessageKind:
			m.Set(f, m.NewField(f))
		case f.Kind() == protoreflect.BoolKind:
			m.Set(f, protoreflect.ValueOfBool(true))
		default:
			t.Fatalf("%s: a %s: add a case to this test", f.Name(), f.Kind())
		}
		if _, alone := saysSNAT(r); alone {
			t.Errorf("a report with %s is taken for one about SNAT alone", f.Name())
		}
	}
}
