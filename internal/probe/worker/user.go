package worker

import (
	"fmt"
	"os/user"
	"strconv"
)

// User is the user and group that a program runs as. It has no supplementary groups.
type User struct {
	UID, GID uint32
}

// LookupUser returns a user of this machine by name.
func LookupUser(name string) (User, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return User{}, fmt.Errorf("find user %q: %w", name, err)
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err1 != nil || err2 != nil {
		return User{}, fmt.Errorf("find user %q: its ids are %q and %q: must be numbers", name, u.Uid, u.Gid)
	}
	found := User{UID: uint32(uid), GID: uint32(gid)}
	return found, found.validate()
}

// validate refuses root.
func (u User) validate() error {
	if u.UID == 0 || u.GID == 0 {
		return fmt.Errorf("user %d, group %d: external checks must not run as root", u.UID, u.GID)
	}
	return nil
}
