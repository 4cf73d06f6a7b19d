package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/seal"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/failure"
)

const secretTries = 3

// Secrets asks the control plane for the values of Secrets. All fields are required.
type Secrets struct {
	Conn  *nats.Conn
	Cell  topology.Cell
	Agent int64
	// Key opens what Sealer, a public key, has sealed.
	Key    seal.Key
	Sealer string
	// Expiry of one request. It is asked three times before Values gives up.
	Expiry time.Duration
}

// Values asks for the values of one Secret and opens them. The error is a [failure.Failure]; it holds no value.
func (s *Secrets) Values(ctx context.Context, workspace string, secret events.SecretReference) (map[string][]byte, error) {
	about := &desired.Reference{ApiVersion: "v1", Kind: desired.KindSecret, Name: secret.Name}
	asked := seal.Request{Name: secret.Name, Digest: secret.Digest}
	request, err := json.Marshal(asked)
	if err != nil {
		return nil, fmt.Errorf("ask for Secret %s: %w", secret.Name, err)
	}
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval = 100 * time.Millisecond
	reply, err := backoff.Retry(ctx, func() (*nats.Msg, error) { return s.ask(ctx, workspace, request) },
		backoff.WithBackOff(wait), backoff.WithMaxTries(secretTries))
	if err != nil {
		return nil, failure.Wrap(err, failure.SecretUnavailable, about,
			"the control plane does not answer when asked for the values of the Secret %s; it is tried again", secret.Name)
	}
	return s.open(reply.Data, asked.Label(workspace), secret.Name, about)
}

func (s *Secrets) ask(ctx context.Context, workspace string, request []byte) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Expiry)
	defer cancel()
	message := nats.NewMsg(s.Cell.Secret(s.Agent, workspace))
	message.Data = request
	telemetry.Inject(ctx, message.Header)
	reply, err := s.Conn.RequestMsgWithContext(ctx, message)
	if err != nil {
		return nil, fmt.Errorf("ask on %s: %w", message.Subject, err)
	}
	return reply, nil
}

func (s *Secrets) open(data []byte, label, name string, about *desired.Reference) (map[string][]byte, error) {
	var reply seal.Reply
	if err := json.Unmarshal(data, &reply); err != nil {
		// The text of the error could quote what it could not read.
		return nil, failure.New(failure.SecretRefused, about, "the control plane's answer about the Secret %s cannot be read; it is tried again", name)
	}
	if reply.Error != nil {
		return nil, refused(*reply.Error, name, about)
	}
	opened, err := seal.OpenValues(reply.Box, label, s.Sealer, s.Key)
	switch {
	case errors.Is(err, seal.ErrWrongLabel):
		return nil, failure.Wrap(err, failure.SecretRefused, about,
			"the values that came for the Secret %s are another Secret's, or older ones; it is tried again", name)
	case err != nil:
		return nil, failure.Wrap(err, failure.SecretRefused, about,
			"the values of the Secret %s are not sealed to this agent by its control plane; the agent's credentials may be out of date", name)
	}
	values := make(map[string][]byte, len(opened))
	for key, value := range opened {
		values[key] = []byte(value.Reveal())
	}
	return values, nil
}

func refused(e seal.ReplyError, name string, about *desired.Reference) error {
	switch e.Code {
	case errcode.Conflict:
		return failure.New(failure.SecretUnavailable, about,
			"the values of the Secret %s have changed since this revision; they are applied with the next one", name)
	case errcode.Unavailable, errcode.DeadlineExceeded, errcode.Internal:
		return failure.New(failure.SecretUnavailable, about, "the control plane does not give the values of the Secret %s: %s", name, e.Message)
	default:
		return failure.New(failure.SecretRefused, about, "the control plane does not give the values of the Secret %s: %s", name, e.Message)
	}
}
