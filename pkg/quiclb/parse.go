package quiclb

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxFile is larger than seven configurations need and small enough to read the file in one piece.
const maxFile = 64 << 10

// Load reads the configurations in a file; see Parse.
func Load(path string) (Configs, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read connection id configuration: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("must be at most %d bytes", maxFile)
	}
	if err != nil {
		return nil, fmt.Errorf("read connection id configuration %s: %w", path, err)
	}
	cs, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return cs, nil
}

// Parse reads configurations, oldest first, as JSON:
//
//	{"configs":[{"id":0,"format":"quiclb","key":"<32 hex digits>","serverId":"<hex>",
//	"nonceLength":13,"active":true}]}
//
// Only format quiclb has a key, and only quiclb and quiclb-plain have a nonceLength; other formats
// omit them or set them to "" or 0. A configuration without active is not active. Unknown and
// duplicate fields are errors. An error names the field, its value (unless it is the key) and the
// allowed values.
func Parse(text []byte) (Configs, error) {
	var cs Configs
	d := json.NewDecoder(bytes.NewReader(text))
	err := object(d, "", func(at, name string) (bool, error) {
		if name != "configs" {
			return false, nil
		}
		return true, list(d, at, func(at string) error {
			c, err := parseConfig(d, at)
			cs = append(cs, c)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("offset %d: text after the object", d.InputOffset())
	}
	if err := cs.Validate(); err != nil {
		return nil, err
	}
	return cs, nil
}

func parseConfig(d *json.Decoder, at string) (c Config, err error) {
	var key, serverID string
	given := map[string]bool{}
	err = object(d, at, func(at, name string) (bool, error) {
		given[name] = true
		switch name {
		case "id":
			return true, value(d, at, fmt.Sprintf("a number, 0 to %d", MaxID), &c.ID)
		case "format":
			return true, value(d, at, "a text", (*string)(&c.Format))
		case "key":
			return true, value(d, at, "a text of 32 hexadecimal digits", &key)
		case "serverId":
			return true, value(d, at, "a text of hexadecimal digits", &serverID)
		case "nonceLength":
			return true, value(d, at, "a number of bytes", &c.NonceLength)
		case "active":
			return true, value(d, at, "true or false", &c.Active)
		}
		return false, nil
	})
	if err != nil {
		return c, err
	}
	for _, name := range []string{"id", "format", "serverId"} {
		if !given[name] {
			return c, fmt.Errorf("%s.%s: missing", at, name)
		}
	}
	if c.ServerID, err = hex.DecodeString(serverID); err != nil {
		return c, fmt.Errorf("%s.serverId: %q: must be an even number of hexadecimal digits", at, serverID)
	}
	if err := c.parseKey(key); err != nil {
		return c, fmt.Errorf("%s.%w", at, err)
	}
	fixed := c.Format == Msquic || c.Format == Mvfst
	if fixed && c.NonceLength != 0 {
		return c, fmt.Errorf("%s.nonceLength: %d: must be left out with format %s", at, c.NonceLength, c.Format)
	}
	return c, nil
}

// parseKey sets the key of a format that has one, and refuses a key for other formats. No error
// shows the key.
func (c *Config) parseKey(text string) error {
	if c.Format != QUICLB {
		if text != "" {
			return fmt.Errorf("key: must be left out with format %s, which does not encrypt", c.Format)
		}
		return nil
	}
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != len(c.Key) {
		return fmt.Errorf("key: %d characters: must be %d hexadecimal digits", len(text), 2*len(c.Key))
	}
	copy(c.Key[:], raw)
	return nil
}

// object reads a JSON object field by field. field reads the value of a field at the given path;
// false means that the field is unknown.
func object(d *json.Decoder, at string, field func(at, name string) (bool, error)) error {
	if err := open(d, at, '{', "an object"); err != nil {
		return err
	}
	seen := map[string]bool{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return broken(d, err)
		}
		name := token.(string)
		path := strings.TrimPrefix(at+"."+name, ".")
		if seen[name] {
			return fmt.Errorf("%s: is there twice", path)
		}
		seen[name] = true
		known, err := field(path, name)
		if err != nil {
			return err
		}
		if !known {
			return fmt.Errorf("%s: no such field", path)
		}
	}
	_, err := d.Token()
	return broken(d, err)
}

// list reads a JSON array; item reads one of its values.
func list(d *json.Decoder, at string, item func(at string) error) error {
	if err := open(d, at, '[', "a list"); err != nil {
		return err
	}
	for i := 0; d.More(); i++ {
		if err := item(fmt.Sprintf("%s[%d]", at, i)); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return broken(d, err)
}

func open(d *json.Decoder, at string, delimiter json.Delim, what string) error {
	token, err := d.Token()
	if err != nil {
		return broken(d, err)
	}
	if token != delimiter {
		return fmt.Errorf("%s: must be %s", cmp.Or(at, "configuration"), what)
	}
	return nil
}

// value reads a scalar. An error does not show it, because it may be a key.
func value(d *json.Decoder, at, allowed string, to any) error {
	var raw json.RawMessage
	if err := d.Decode(&raw); err != nil {
		return broken(d, err)
	}
	if bytes.Equal(raw, []byte("null")) || json.Unmarshal(raw, to) != nil {
		return fmt.Errorf("%s: must be %s", at, allowed)
	}
	return nil
}

func broken(d *json.Decoder, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("offset %d: %w", d.InputOffset(), err)
}
