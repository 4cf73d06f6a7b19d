// Package natsadmin gives tests an administrator of NATS, who may do everything in the account of the streams. No
// installation has one: add [Principal] to the options of natsauth.Init.
package natsadmin

import (
	"testing"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/natsauth"
)

// Name of the administrator, and of its key in the folder of natsauth.Init.
const Name = "test-administrator"

// Principal is the administrator.
func Principal() natsauth.StaticPrincipal {
	everything := jwt.Permission{Allow: jwt.StringList{">"}}
	return natsauth.StaticPrincipal{
		Name: Name, Account: natsauth.AccountControl, Permissions: jwt.Permissions{Pub: everything, Sub: everything},
	}
}

// Key returns the option to connect as the administrator, with the folder of natsauth.Init.
func Key(tb testing.TB, dir string) nats.Option {
	tb.Helper()
	key, err := nats.NkeyOptionFromSeed(natsauth.SeedFile(dir, Name))
	if err != nil {
		tb.Fatalf("read the key of the test's administrator: %v", err)
	}
	return key
}
