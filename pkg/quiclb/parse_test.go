package quiclb

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const good = `{"id":0,"format":"quiclb","key":"8f95f09245765f80256934e50c66207f","serverId":"007000","nonceLength":13,"active":true}`

// render returns the configurations as JSON, in the format of a file.
func render(cs Configs) []byte {
	type entry struct {
		ID          uint8  `json:"id"`
		Format      Format `json:"format"`
		Key         string `json:"key,omitempty"`
		ServerID    string `json:"serverId"`
		NonceLength int    `json:"nonceLength,omitempty"`
		Active      bool   `json:"active"`
	}
	file := struct {
		Configs []entry `json:"configs"`
	}{}
	for _, c := range cs {
		e := entry{ID: c.ID, Format: c.Format, ServerID: hex.EncodeToString(c.ServerID), NonceLength: c.NonceLength, Active: c.Active}
		if c.Format == QUICLB {
			e.Key = hex.EncodeToString(c.Key[:])
		}
		file.Configs = append(file.Configs, e)
	}
	text, err := json.Marshal(file)
	if err != nil {
		panic(err)
	}
	return text
}

func TestParse(t *testing.T) {
	cs, err := Parse([]byte(`{"configs":[` + good + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	want := Config{Format: QUICLB, Key: Key(unhex(t, "8f95f09245765f80256934e50c66207f")), ServerID: []byte{0, 0x70, 0}, NonceLength: 13, Active: true}
	if len(cs) != 1 || !reflect.DeepEqual(cs[0], want) {
		t.Errorf("%v, want %v", cs, want)
	}
	if got := Member(cs[0].ServerID); got != 7 {
		t.Errorf("member %d, want 7", got)
	}
	if got := fmt.Sprintf("%v %+v %#v %x %s", cs, cs[0], cs[0], cs[0].Key, cs[0].Key); strings.Contains(strings.ToLower(got), "8f95") || strings.Contains(got, "0x8f") || strings.Contains(got, "143") {
		t.Errorf("the key is printed: %s", got)
	}
}

// TestParseRefuses: an error names the field, its value (unless it is the key) and the allowed
// values.
func TestParseRefuses(t *testing.T) {
	with := func(old, new string) string { return `{"configs":[` + strings.Replace(good, old, new, 1) + `]}` }
	tests := []struct{ text, want string }{
		{``, "offset 0: unexpected EOF"},
		{`[]`, "configuration: must be an object"},
		{`{}`, "configs: none: must be 1 to 7"},
		{`{"configs":[]}`, "configs: none: must be 1 to 7"},
		{`{"configs":{}}`, "configs: must be a list"},
		{`{"configs":[7]}`, "configs[0]: must be an object"},
		{`{"configs":[` + good, "unexpected EOF"},
		{`{"configs":[` + good + `]}{}`, "text after the object"},
		{`{"Configs":[]}`, "Configs: no such field"},
		{`{"configs":[` + good + `],"configs":[]}`, "configs: is there twice"},
		{with(`"id":0`, `"ID":0`), "configs[0].ID: no such field"},
		{with(`"id":0`, `"id":0,"id":1`), "configs[0].id: is there twice"},
		{with(`"id":0,`, ``), "configs[0].id: missing"},
		{with(`"id":0`, `"id":7`), "configs[0].id: 7: must be 0 to 6"},
		{with(`"id":0`, `"id":-1`), "configs[0].id: must be a number, 0 to 6"},
		{with(`"id":0`, `"id":null`), "configs[0].id: must be a number, 0 to 6"},
		{with(`"quiclb"`, `"QUIC-LB"`), "configs[0].key: must be left out with format QUIC-LB"},
		{with(`"format":"quiclb","key":"8f95f09245765f80256934e50c66207f"`, `"format":"QUIC-LB"`), `configs[0].format: "QUIC-LB": must be quiclb, quiclb-plain, msquic or mvfst`},
		{with(`"format":"quiclb",`, ``), "configs[0].format: missing"},
		{with(`"quiclb"`, `"quiclb-plain"`), "configs[0].key: must be left out with format quiclb-plain"},
		{with(`8f95`, `8f9`), "configs[0].key: 31 characters: must be 32 hexadecimal digits"},
		{with(`8f95`, `8g95`), "configs[0].key: 32 characters: must be 32 hexadecimal digits"},
		{with(`"key":"8f95f09245765f80256934e50c66207f",`, ``), "configs[0].key: 0 characters: must be 32 hexadecimal digits"},
		{with(`"007000"`, `"00700"`), `configs[0].serverId: "00700": must be an even number of hexadecimal digits`},
		{with(`"007000"`, `7000`), "configs[0].serverId: must be a text of hexadecimal digits"},
		{with(`"007000"`, `""`), "configs[0].serverId: 0 bytes: must be 1 to 15"},
		{with(`"serverId":"007000",`, ``), "configs[0].serverId: missing"},
		{with(`:13`, `:3`), "configs[0].nonceLength: 3: must be 4 to 18"},
		{with(`:13`, `:17`), "configs[0].nonceLength: 17: must be at most 16 with a server id of 3 bytes"},
		{with(`:13`, `:13.5`), "configs[0].nonceLength: must be a number of bytes"},
		{with(`"active":true`, `"active":"yes"`), "configs[0].active: must be true or false"},
		{with(`"active":true`, `"active":false`), "configs: 1, none active"},
		{`{"configs":[` + good + `,` + good + `]}`, "configs[1].id: 0: must be unique, configs[0] has it"},
		{`{"configs":[{"id":0,"format":"msquic","serverId":"00700000","nonceLength":13,"active":true}]}`, "configs[0].nonceLength: 13: must be left out with format msquic"},
		{`{"configs":[{"id":1,"format":"msquic","serverId":"00700000","active":true}]}`, "configs[0].id: 1: must be 0 with format msquic"},
		{`{"configs":[{"id":0,"format":"msquic","serverId":"007000","active":true}]}`, "configs[0].serverId: 3 bytes: must be 4"},
		{`{"configs":[{"id":0,"format":"mvfst","serverId":"0070000000","active":true}]}`, "configs[0].serverId: 5 bytes: must be 2 to 4"},
		{`{"configs":[` + strings.Replace(good, `"id":0`, `"id":1`, 1) + `,{"id":0,"format":"mvfst","serverId":"007000","active":true}]}`, "configs[1].format: mvfst: must be the only configuration"},
	}
	for _, test := range tests {
		_, err := Parse([]byte(test.text))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.text, err, test.want)
			continue
		}
		if strings.Contains(err.Error(), "f09245765f80") {
			t.Errorf("the key is printed: %v", err)
		}
	}
}

// anyConfigs draws a valid set of configurations.
func anyConfigs(t *rapid.T) (cs Configs) {
	ids := rapid.SliceOfNDistinct(rapid.IntRange(0, MaxID), 1, MaxID+1, rapid.ID[int]).Draw(t, "ids")
	for _, id := range ids {
		s := anyScheme(t)
		fixed := s.Format == Msquic || s.Format == Mvfst
		if fixed && len(ids) > 1 {
			s = Scheme{Format: Plain, ServerIDLength: 3, NonceLength: 13}
			fixed = false
		}
		c := Config{ID: uint8(id), Format: s.Format, Key: s.Key, ServerID: bytesOf(t, s.ServerIDLength, "server id"), NonceLength: s.NonceLength}
		if fixed {
			c.ID, c.NonceLength = 0, 0
		}
		c.Active = rapid.Bool().Draw(t, "active")
		cs = append(cs, c)
	}
	cs[rapid.IntRange(0, len(cs)-1).Draw(t, "one that is active")].Active = true
	return cs
}

// TestParseProperty: Parse reads back every rendered configuration, and Newest is the last active
// one.
func TestParseProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cs := anyConfigs(t)
		got, err := Parse(render(cs))
		if err != nil || !reflect.DeepEqual(got, cs) {
			t.Fatalf("%v, %v, want %v", got, err, cs)
		}
		newest, ok := got.Newest()
		if !ok {
			t.Fatal("none is the newest")
		}
		for i, c := range cs {
			if reflect.DeepEqual(c, newest) {
				for _, later := range cs[i+1:] {
					if later.Active {
						t.Fatalf("newest is %v, but %v is active", newest, later)
					}
				}
			}
		}
	})
}

// FuzzParse: Parse either returns an error or returns usable configurations.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"configs":[` + good + `]}`))
	f.Add([]byte(`{"configs":[{"id":0,"format":"mvfst","serverId":"007000","active":true}]}`))
	f.Add([]byte(`{"configs":[{"id":3,"format":"quiclb-plain","key":"","serverId":"0070","nonceLength":4,"active":true},` + good + `]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		cs, err := Parse(text)
		if err != nil {
			return
		}
		again, err := Parse(render(cs))
		if err != nil || !reflect.DeepEqual(again, cs) {
			t.Fatalf("%s\nis read as %v\nand then as %v, %v", text, cs, again, err)
		}
		g, err := NewGenerator(cs)
		if err != nil {
			t.Fatal(err)
		}
		newest, _ := cs.Newest()
		c, err := NewCodec(newest.Scheme())
		if err != nil {
			t.Fatal(err)
		}
		if id, _, err := c.Decode(g.Next()); err != nil || string(id) != string(newest.ServerID) {
			t.Fatalf("server id %x, %v, want %x", id, err, newest.ServerID)
		}
	})
}

// FuzzDecode: Decode either fails or returns fields that encode to the same CID again.
func FuzzDecode(f *testing.F) {
	f.Add(uint8(0), uint8(3), uint8(13), []byte("\x07\x20\xb1\xd0\x7b\x35\x9d\x3c0123456789abcdef"))
	f.Add(uint8(2), uint8(4), uint8(0), []byte("\xc0\xa1\xb2\xc3\xd4\x01\x02\x03"))
	f.Fuzz(func(t *testing.T, format, serverID, nonce uint8, cid []byte) {
		s := Scheme{Format: []Format{QUICLB, Plain, Mvfst, Msquic}[format%4], Key: Key{1, 2, 3}, ServerIDLength: int(serverID), NonceLength: int(nonce)}
		if len(cid) > 0 && format%4 < 2 {
			s.ID = cid[0] >> 5
		}
		c, err := NewCodec(s)
		if err != nil {
			return
		}
		id, n, err := c.Decode(cid)
		if err != nil {
			return
		}
		spare := cid[0]
		if s.Format == Mvfst && len(id) == 2 {
			spare = cid[2]
		}
		if again := c.Encode(nil, spare, id, n); string(again) != string(cid[:s.Length()]) {
			t.Fatalf("%x is server %x, nonce %x, which is %x", cid, id, n, again)
		}
	})
}
