package loop

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/shuntlb/shunt/internal/lb"
)

// typeCAA is a record type for which dnsmessage has no name (RFC 8659).
const typeCAA = dnsmessage.Type(257)

var dnsTypes = map[string]dnsmessage.Type{
	"A": dnsmessage.TypeA, "AAAA": dnsmessage.TypeAAAA, "CAA": typeCAA, "CNAME": dnsmessage.TypeCNAME, "MX": dnsmessage.TypeMX,
	"NS": dnsmessage.TypeNS, "PTR": dnsmessage.TypePTR, "SOA": dnsmessage.TypeSOA, "SRV": dnsmessage.TypeSRV, "TXT": dnsmessage.TypeTXT,
}

// rcodes are the names of response codes (IANA, DNS RCODEs).
var rcodes = [...]string{"NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED", "YXDOMAIN", "YXRRSET", "NXRRSET", "NOTAUTH", "NOTZONE"}

// dnsQuestion is a DNS question with the expected answer.
type dnsQuestion struct {
	question     dnsmessage.Question
	kind, answer string
}

// newDNSQuestion returns the question and its message, with 0 for an id (RFC 1035, section 4).
func newDNSQuestion(c *lb.Check) (q dnsQuestion, message []byte, err error) {
	kind, known := dnsTypes[c.Type]
	if !known {
		return q, nil, fmt.Errorf("dns.type: %q: %w", c.Type, errors.ErrUnsupported)
	}
	name, err := dnsmessage.NewName(strings.TrimSuffix(c.Name, ".") + ".")
	if err != nil {
		return q, nil, fmt.Errorf("dns.name: %q: %w", c.Name, err)
	}
	q = dnsQuestion{dnsmessage.Question{Name: name, Type: kind, Class: dnsmessage.ClassINET}, c.Type, c.Answer}
	m := dnsmessage.Message{Header: dnsmessage.Header{RecursionDesired: true}, Questions: []dnsmessage.Question{q.question}}
	if message, err = m.Pack(); err != nil {
		return q, nil, fmt.Errorf("dns.name: %q: %w", c.Name, err)
	}
	return q, message, nil
}

// judge evaluates a datagram; done: it is the answer to the question with that id. Other datagrams
// are ignored, because any host can send them.
func (q *dnsQuestion) judge(id uint16, b []byte) (f finding, done bool) {
	var p dnsmessage.Parser
	h, err := p.Start(b)
	if err != nil || !h.Response || h.ID != id {
		return f, false
	}
	asked, err := p.Question()
	if h.RCode != dnsmessage.RCodeFormatError && (err != nil || !q.isAsked(asked)) {
		return f, false
	}
	if h.RCode != dnsmessage.RCodeSuccess {
		if int(h.RCode) < len(rcodes) {
			return bad("%s", rcodes[h.RCode]), true
		}
		return bad("RCODE %d", h.RCode), true
	}
	if err := p.SkipAllQuestions(); err != nil {
		return bad("malformed DNS answer: %v", err), true
	}
	found := 0
	for {
		r, err := p.Answer()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			break
		}
		if err != nil {
			return bad("malformed DNS answer: %v", err), true
		}
		if r.Header.Type != q.question.Type || r.Header.Class != dnsmessage.ClassINET {
			continue
		}
		if found++; q.answer == "" || q.matches(r.Body) {
			return good("answered"), true
		}
	}
	switch {
	case h.Truncated:
		return bad("the answer does not fit a datagram"), true
	case found == 0:
		return bad("no %s record", q.kind), true
	}
	return bad("no %s record is %q", q.kind, q.answer), true
}

func (q *dnsQuestion) isAsked(a dnsmessage.Question) bool {
	return a.Type == q.question.Type && a.Class == q.question.Class && sameName(a.Name.String(), q.question.Name.String())
}

// sameName compares DNS names, with or without the last dot.
func sameName(a, b string) bool {
	return strings.EqualFold(strings.TrimSuffix(a, "."), strings.TrimSuffix(b, "."))
}

// matches reports whether a record's data equals the expected answer, in the form of zone files
// (RFC 1035, section 5).
func (q *dnsQuestion) matches(body dnsmessage.ResourceBody) bool {
	switch r := body.(type) {
	case *dnsmessage.AResource:
		return sameAddress(netip.AddrFrom4(r.A), q.answer)
	case *dnsmessage.AAAAResource:
		return sameAddress(netip.AddrFrom16(r.AAAA), q.answer)
	case *dnsmessage.TXTResource:
		return strings.Join(r.TXT, "") == q.answer
	case *dnsmessage.UnknownResource:
		return caa(r.Data) == q.answer
	case *dnsmessage.CNAMEResource:
		return sameName(r.CNAME.String(), q.answer)
	case *dnsmessage.NSResource:
		return sameName(r.NS.String(), q.answer)
	case *dnsmessage.PTRResource:
		return sameName(r.PTR.String(), q.answer)
	case *dnsmessage.MXResource:
		return q.isWords(fmt.Sprint(r.Pref), r.MX.String())
	case *dnsmessage.SRVResource:
		return q.isWords(fmt.Sprint(r.Priority), fmt.Sprint(r.Weight), fmt.Sprint(r.Port), r.Target.String())
	case *dnsmessage.SOAResource:
		return q.isWords(r.NS.String(), r.MBox.String(), fmt.Sprint(r.Serial), fmt.Sprint(r.Refresh), fmt.Sprint(r.Retry), fmt.Sprint(r.Expire), fmt.Sprint(r.MinTTL))
	}
	return false
}

// isWords compares the fields of the expected answer, which may be names.
func (q *dnsQuestion) isWords(words ...string) bool {
	return slices.EqualFunc(strings.Fields(q.answer), words, sameName)
}

func sameAddress(a netip.Addr, s string) bool {
	b, err := netip.ParseAddr(s)
	return err == nil && a == b
}

// caa returns a CAA record as text: flags, tag and value (RFC 8659, section 4.1).
func caa(data []byte) string {
	if len(data) < 2 || len(data) < 2+int(data[1]) {
		return ""
	}
	end := 2 + int(data[1])
	return fmt.Sprintf("%d %s %q", data[0], data[2:end], data[end:])
}
