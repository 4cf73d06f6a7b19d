package natsauth

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

const (
	calloutAudience = "nats-authorization-request"
	serverKeyHeader = "Nats-Server-Xkey"

	maxRequestBytes  = 64 << 10
	maxSecretBytes   = 8 << 10
	maxIdentityBytes = 256

	// jitterDivisor: up to this fraction of a lifetime is random, so that agents that connected at the same time, such
	// as after an outage, do not all reconnect at the same time.
	jitterDivisor = 4

	// publicRefusal is the only reason in the response. The responder logs the real reason.
	publicRefusal = "credentials refused"
)

// calloutRequest contains the used fields of an authorization request.
type calloutRequest struct {
	// userKey is the temporary user nkey of the client; the response must contain it.
	userKey string
	// serverID and serverKey identify the server that receives the response.
	serverID  string
	serverKey string

	credentials Credentials
}

// openRequest decrypts and validates an authorization request. It rejects unencrypted requests: an encrypted one
// comes from a server that was configured with the exchange key, and its tokens are not readable in the AUTH
// account.
func openRequest(exchange nkeys.KeyPair, message *nats.Msg) (calloutRequest, error) {
	if len(message.Data) > maxRequestBytes {
		return calloutRequest{}, fmt.Errorf("request of %d bytes is over the limit of %d", len(message.Data), maxRequestBytes)
	}

	serverKey := message.Header.Get(serverKeyHeader)
	if !nkeys.IsValidPublicCurveKey(serverKey) {
		return calloutRequest{}, errors.New(
			"request is not encrypted: set authorization.auth_callout.xkey in the server's configuration",
		)
	}

	plain, err := exchange.Open(message.Data, serverKey)
	if err != nil {
		return calloutRequest{}, fmt.Errorf("decrypt request: %w", err)
	}

	claims, err := jwt.DecodeAuthorizationRequestClaims(string(plain))
	if err != nil {
		return calloutRequest{}, fmt.Errorf("decode request: %w", err)
	}

	results := jwt.CreateValidationResults()
	claims.Validate(results)

	switch {
	case len(results.Errors()) > 0:
		return calloutRequest{}, fmt.Errorf("request is invalid: %w", results.Errors()[0])
	case claims.Audience != calloutAudience:
		return calloutRequest{}, fmt.Errorf("request is for audience %q", claims.Audience)
	case claims.Server.ID != claims.Issuer:
		return calloutRequest{}, fmt.Errorf("request of server %s is signed by %s", claims.Server.ID, claims.Issuer)
	case claims.Server.XKey != serverKey:
		return calloutRequest{}, errors.New("the server key in the request differs from the key that encrypted it")
	}

	return calloutRequest{
		userKey:     claims.UserNkey,
		serverID:    claims.Server.ID,
		serverKey:   serverKey,
		credentials: credentialsOf(claims),
	}, nil
}

// checkSizes rejects oversized credentials before they are hashed, compared or logged.
func checkSizes(c Credentials) error {
	for name, field := range map[string]string{"user": c.User, "client name": c.ClientName} {
		if len(field) > maxIdentityBytes {
			return fmt.Errorf("%w: %s of %d bytes", ErrRefused, name, len(field))
		}
	}

	for name, field := range map[string]string{"password": c.Password, "token": c.Token, "jwt": c.JWT} {
		if len(field) > maxSecretBytes {
			return fmt.Errorf("%w: %s of %d bytes", ErrRefused, name, len(field))
		}
	}

	return nil
}

// userToken returns the signed user JWT for the client.
func (r *Responder) userToken(userKey string, principal Principal, now time.Time) (string, error) {
	lifetime := r.Lifetime
	if lifetime == 0 {
		lifetime = defaultLifetime
	}

	expires, err := expiry(principal, now, lifetime, rand.Float64()) //nolint:gosec // spreads load, hides nothing
	if err != nil {
		return "", err
	}

	claims := jwt.NewUserClaims(userKey)
	claims.Name = principal.User()
	claims.Audience = string(principal.Account())
	claims.Expires = expires.Unix()
	claims.Permissions = Permissions(r.Cell, principal)
	claims.AllowedConnectionTypes = jwt.StringList{
		jwt.ConnectionTypeStandard, jwt.ConnectionTypeInProcess, jwt.ConnectionTypeWebsocket,
	}

	token, err := claims.Encode(r.Keys.Issuer)
	if err != nil {
		return "", fmt.Errorf("sign user: %w", err)
	}

	return token, nil
}

// expiry returns a time between 75 % and 100 % of the lifetime from now, at most principal.NotAfter. share is a
// random number from 0 up to 1. JWT times are whole seconds: the lifetime is rounded up, NotAfter down.
func expiry(principal Principal, now time.Time, lifetime time.Duration, share float64) (time.Time, error) {
	jitter := time.Duration(share * float64(lifetime/jitterDivisor))
	expires := now.Add(lifetime - jitter + time.Second - 1).Truncate(time.Second)

	if !principal.NotAfter.IsZero() && principal.NotAfter.Before(expires) {
		expires = principal.NotAfter.Truncate(time.Second)
	}

	if !expires.After(now) {
		return time.Time{}, fmt.Errorf("%w: the credentials have expired", ErrRefused)
	}

	return expires, nil
}

// sealAnswer makes the encrypted answer: the user token, or a refusal when there is none.
func sealAnswer(keys CalloutKeys, request calloutRequest, user string) ([]byte, error) {
	claims := jwt.NewAuthorizationResponseClaims(request.userKey)
	claims.Audience = request.serverID
	claims.Jwt = user

	if user == "" {
		claims.Error = publicRefusal
	}

	token, err := claims.Encode(keys.Issuer)
	if err != nil {
		return nil, fmt.Errorf("sign answer: %w", err)
	}

	sealed, err := keys.Exchange.Seal([]byte(token), request.serverKey)
	if err != nil {
		return nil, fmt.Errorf("encrypt answer: %w", err)
	}

	return sealed, nil
}
