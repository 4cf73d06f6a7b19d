package gateway

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	libaccess "lockstep.internal/libs/access"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/gateway/access"
	"lockstep.internal/services/gateway/rpc"
	"lockstep.internal/services/gateway/session"
	"lockstep.internal/services/gateway/sshfront"
)

// personalPrefix is the prefix of personal access tokens.
const personalPrefix = "lsp_"

// people authenticates people by the copy of the directory. Only personal access tokens need the state service.
type people struct {
	directory *directory.Directory
	keys      *access.Keys
	verifier  *libaccess.Verifier
	state     *rpc.State
	now       func() time.Time
}

// login names a person in logs: the directory has no names.
func login(userID int64) string { return fmt.Sprintf("user-%d", userID) }

// ByLogin implements [signin.Users].
func (p *people) ByLogin(_ context.Context, name string) (int64, error) {
	user, known := p.directory.UserByName(name)
	switch {
	case !known:
		return 0, fmt.Errorf("there is no user %q in Lockstep: ask an administrator", name)
	case user.Blocked:
		return 0, fmt.Errorf("the user %q is blocked: ask an administrator", name)
	}
	return user.ID, nil
}

// Check implements [signin.Users].
func (p *people) Check(s session.Session) error {
	_, err := libaccess.CurrentCaller(p.directory, libaccess.Caller{UserID: s.UserID, TokenID: s.TokenID})
	return err
}

// Changed implements [signin.Users].
func (p *people) Changed() <-chan struct{} { return p.directory.Changed() }

// Create implements [signin.Tokens].
func (p *people) Create(ctx context.Context, userID int64, name string, expiresAt time.Time) (string, error) {
	return p.state.Create(ctx, userID, name, expiresAt)
}

// Verify implements [signin.Tokens].
func (p *people) Verify(token string) (session.Session, error) {
	caller, err := p.verify(token)
	if err != nil {
		return session.Session{}, err
	}
	return session.Session{
		UserID: caller.UserID, Login: login(caller.UserID), TokenID: caller.TokenID, ExpiresAt: caller.TokenExpiresAt,
	}, nil
}

// verify accepts access tokens that may write: who is in a workspace changes it.
func (p *people) verify(token string) (libaccess.Caller, error) {
	if token == "" {
		return libaccess.Caller{}, fault.New(errcode.Unauthenticated,
			"send an access token in the header Authorization: Bearer <token>")
	}
	caller, err := p.verifier.Verify(token)
	if err != nil {
		return libaccess.Caller{}, err
	}
	return caller, caller.Scope.Require(libaccess.ScopeWrite, "a workspace")
}

// credential is how a person has authenticated at the SSH server.
type credential struct {
	fingerprint string           // of a key
	caller      libaccess.Caller // of a token
	at          time.Time
}

// ByKey implements [sshfront.People].
func (p *people) ByKey(_ context.Context, key ssh.PublicKey) (sshfront.Person, error) {
	c := credential{fingerprint: access.Fingerprint(key), at: p.now()}
	found, err := p.keys.Find(c.fingerprint, c.at)
	if err != nil {
		return sshfront.Person{}, err
	}
	c.caller.UserID = found.UserID
	return p.person(c)
}

// ByToken implements [sshfront.People]: access tokens and personal access tokens are passwords.
func (p *people) ByToken(ctx context.Context, token string) (sshfront.Person, error) {
	if strings.HasPrefix(token, personalPrefix) {
		var err error
		if token, err = p.state.Exchange(ctx, token); err != nil {
			return sshfront.Person{}, err
		}
	}
	caller, err := p.verify(token)
	if err != nil {
		return sshfront.Person{}, err
	}
	return p.person(credential{caller: caller, at: p.now()})
}

func (p *people) person(c credential) (sshfront.Person, error) {
	if err := p.check(c); err != nil {
		return sshfront.Person{}, err
	}
	return sshfront.Person{ID: c.caller.UserID, Login: login(c.caller.UserID), Credential: c}, nil
}

// check returns why a credential is not valid.
func (p *people) check(c credential) error {
	if _, err := libaccess.CurrentCaller(p.directory, c.caller); err != nil {
		return err
	}
	if c.fingerprint == "" {
		return nil
	}
	found, err := p.keys.Find(c.fingerprint, p.now())
	if err == nil && found.UserID != c.caller.UserID {
		err = access.ErrUnknownKey
	}
	return err
}

// errLifetime ends connections before the directory forgets that their token was revoked.
var errLifetime = errors.New("the connection has reached its maximum lifetime: connect again")

// Ended implements [sshfront.People].
func (p *people) Ended(ctx context.Context, person sshfront.Person) error {
	c, known := person.Credential.(credential)
	if !known {
		return errors.New("the person has not authenticated")
	}
	end, reason := libaccess.StreamEnd(c.at, libaccess.MaxStreamLifetime, c.caller.TokenExpiresAt)
	if c.fingerprint != "" {
		reason = errLifetime
		if found, err := p.keys.Find(c.fingerprint, p.now()); err == nil && !found.ExpiresAt.IsZero() &&
			found.ExpiresAt.Before(end) {
			end, reason = found.ExpiresAt, access.ErrUnknownKey
		}
	}
	limit := time.NewTimer(end.Sub(p.now()))
	defer limit.Stop()
	for {
		users, keys := p.directory.Changed(), p.keys.Changed()
		if err := p.check(c); err != nil {
			return err
		}
		select {
		case <-users:
		case <-keys:
		case <-limit.C:
			return reason
		case <-ctx.Done():
			return nil
		}
	}
}
