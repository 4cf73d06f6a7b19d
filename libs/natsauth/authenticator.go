package natsauth

import (
	"context"
	"errors"
	"log/slog"

	"github.com/nats-io/jwt/v2"

	"lockstep.internal/libs/logkey"
)

// Authenticator identifies a connecting client. Implementations are called concurrently. They must honor the
// context (the server stops waiting when it ends) and must compare secrets in constant time, or look up their hash.
type Authenticator interface {
	// Authenticate returns the principal behind the credentials. An error that wraps [ErrRefused] means that they are
	// wrong or revoked. Other errors mean that they could not be checked. The client is rejected in both cases without
	// a reason. The log contains the reason.
	Authenticate(ctx context.Context, credentials Credentials) (Principal, error)
}

// ErrRefused is wrapped by an [Authenticator] that knows the credentials to be wrong or revoked.
var ErrRefused = errors.New("credentials refused")

// Credentials contains what a client sent. All fields are untrusted, except Host and TLS.VerifiedChains.
// Credentials never print their secrets.
type Credentials struct {
	// User and Password are what agents send: their id and their token.
	User     string
	Password string
	// Token is a bearer token without a user, such as that of a Kubernetes ServiceAccount.
	Token string
	// JWT is whatever the client sent as its user JWT.
	JWT string
	// ClientName is what the client calls its connection.
	ClientName string
	// Host is the address that the server sees.
	Host string
	// ConnectionType is "STANDARD", "WEBSOCKET" or "MQTT".
	ConnectionType string
	// Server is the name of the NATS server that sent the request.
	Server string
	// TLS is nil on a connection without TLS.
	TLS *TLSState
}

// TLSState is what is known of a client's TLS connection. Certificates are PEM.
type TLSState struct {
	Version string
	Cipher  string
	// VerifiedChains are chains that the server checked against its CA, the client's own
	// certificate first.
	VerifiedChains [][]string
	// Certificates are unverified client certificates. Set only without VerifiedChains.
	Certificates []string
}

// LogValue returns user, host and client name, without secrets.
func (c Credentials) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String(logkey.User, c.User),
		slog.String(logkey.Host, c.Host),
		slog.String(logkey.ClientName, c.ClientName),
		slog.String(logkey.Server, c.Server),
		slog.Bool(logkey.TLS, c.TLS != nil),
	)
}

// String is [Credentials.LogValue] as text.
func (c Credentials) String() string { return c.LogValue().String() }

// GoString keeps %#v from printing secrets.
func (c Credentials) GoString() string { return c.String() }

// MarshalJSON keeps encoders from writing secrets.
func (c Credentials) MarshalJSON() ([]byte, error) {
	return []byte(`"[credentials]"`), nil
}

func credentialsOf(request *jwt.AuthorizationRequestClaims) Credentials {
	credentials := Credentials{
		User:           request.ConnectOptions.Username,
		Password:       request.ConnectOptions.Password,
		Token:          request.ConnectOptions.Token,
		JWT:            request.ConnectOptions.JWT,
		ClientName:     request.ConnectOptions.Name,
		Host:           request.ClientInformation.Host,
		ConnectionType: request.ClientInformation.Type,
		Server:         request.Server.Name,
	}

	if t := request.TLS; t != nil {
		chains := make([][]string, len(t.VerifiedChains))
		for i, chain := range t.VerifiedChains {
			chains[i] = chain
		}

		credentials.TLS = &TLSState{
			Version:        t.Version,
			Cipher:         t.Cipher,
			VerifiedChains: chains,
			Certificates:   t.Certs,
		}
	}

	return credentials
}
