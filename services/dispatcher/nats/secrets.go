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

type secretRequest struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
}

type secretReply struct {
	Digest string            `json:"digest"`
	Values map[string][]byte `json:"values"`
	Error  *struct {
		Code    errcode.Code `json:"code"`
		Message string       `json:"message"`
	} `json:"error"`
}

// Values asks for the values of one Secret and opens them. The error is a [failure.Failure]; it holds no value.
func (s *Secrets) Values(ctx context.Context, workspace string, secret events.SecretReference) (map[string][]byte, error) {
	about := &desired.Reference{ApiVersion: "v1", Kind: desired.KindSecret, Name: secret.Name}
	request, err := json.Marshal(secretRequest{Name: secret.Name, Digest: secret.Digest})
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
	return s.open(reply.Data, secret, about)
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

func (s *Secrets) open(data []byte, secret events.SecretReference, about *desired.Reference) (map[string][]byte, error) {
	var reply secretReply
	if err := json.Unmarshal(data, &reply); err != nil {
		// The text of the error could quote what it could not read.
		return nil, failure.New(failure.SecretRefused, about, "the control plane's answer about the Secret %s cannot be read; it is tried again", secret.Name)
	}
	if reply.Error != nil {
		reason := failure.SecretRefused
		if reply.Error.Code == errcode.Unavailable || reply.Error.Code == errcode.DeadlineExceeded || reply.Error.Code == errcode.Internal {
			reason = failure.SecretUnavailable
		}
		return nil, failure.New(reason, about, "the control plane does not give the values of the Secret %s: %s", secret.Name, reply.Error.Message)
	}
	if reply.Digest != secret.Digest {
		return nil, failure.New(failure.SecretUnavailable, about,
			"the values of the Secret %s have changed since this revision; they are applied with the next one", secret.Name)
	}
	values := make(map[string][]byte, len(reply.Values))
	for key, box := range reply.Values {
		value, err := seal.Open(box, s.Sealer, s.Key)
		switch {
		case errors.Is(err, seal.ErrNotOpened):
			return nil, failure.Wrap(err, failure.SecretRefused, about,
				"the value %q of the Secret %s is not sealed to this agent by its control plane; the agent's credentials may be out of date", key, secret.Name)
		case err != nil:
			return nil, failure.Wrap(err, failure.SecretRefused, about, "the value %q of the Secret %s cannot be opened", key, secret.Name)
		}
		values[key] = value
	}
	return values, nil
}
