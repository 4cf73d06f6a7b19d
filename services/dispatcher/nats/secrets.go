package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/seal"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/failure"
)

const secretAttempts = 3

// Secrets requests the values of Secrets from the control plane. All fields are required.
type Secrets struct {
	Conn    *nats.Conn
	Cell    topology.Cell
	AgentID int64
	// Key is the agent's private key; SealerKey the public key of the control plane.
	Key       seal.Key
	SealerKey string
	// Timeout of one request. Values makes three attempts.
	Timeout time.Duration
}

// Values requests and opens the values of one Secret. The error is a [failure.Failure] without any
// value.
func (s *Secrets) Values(
	ctx context.Context, workspace string, secret events.SecretReference,
) (map[string][]byte, error) {
	about := &desired.Reference{ApiVersion: "v1", Kind: desired.KindSecret, Name: secret.Name}
	body := seal.Request{Name: secret.Name, Digest: secret.Digest}
	request, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("request Secret %s: %w", secret.Name, err)
	}
	var reply *nats.Msg
	attempts := 0
	err = retry.Policy{Min: 100 * time.Millisecond, Max: time.Second}.Do(ctx, func() error {
		attempts++
		if reply, err = s.request(ctx, workspace, request); err != nil && attempts == secretAttempts {
			return retry.Permanent(err)
		}
		return err
	}, nil)
	if err != nil {
		return nil, failure.Wrap(err, failure.SecretUnavailable, about,
			"the control plane does not answer the request for the Secret %s; the dispatcher retries", secret.Name)
	}
	return s.open(reply.Data, body.Label(workspace), secret.Name, about)
}

func (s *Secrets) request(ctx context.Context, workspace string, body []byte) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	message := nats.NewMsg(s.Cell.Secret(s.AgentID, workspace))
	message.Data = body
	telemetry.Inject(ctx, message.Header)
	reply, err := s.Conn.RequestMsgWithContext(ctx, message)
	if err != nil {
		return nil, fmt.Errorf("request on %s: %w", message.Subject, err)
	}
	return reply, nil
}

func (s *Secrets) open(data []byte, label, name string, about *desired.Reference) (map[string][]byte, error) {
	var reply seal.Reply
	if err := json.Unmarshal(data, &reply); err != nil {
		// The error text could quote a value, so it is not wrapped.
		return nil, failure.New(failure.SecretRefused, about,
			"the control plane's answer to the request for the Secret %s is not valid; the dispatcher retries", name)
	}
	if reply.Error != nil {
		return nil, refused(*reply.Error, name, about)
	}
	opened, err := seal.OpenValues(reply.Box, label, s.SealerKey, s.Key)
	switch {
	case errors.Is(err, seal.ErrWrongLabel):
		return nil, failure.Wrap(err, failure.SecretRefused, about,
			"the received values do not have the digest of the Secret %s; the dispatcher retries", name)
	case err != nil:
		return nil, failure.Wrap(err, failure.SecretRefused, about,
			"the values of the Secret %s are not sealed for this agent by its control plane; "+
				"the agent's credentials may be out of date", name)
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
			"the values of the Secret %s have changed since this revision; the next revision applies them", name)
	case errcode.Unavailable, errcode.DeadlineExceeded, errcode.Internal:
		return failure.New(failure.SecretUnavailable, about,
			"the control plane cannot provide the Secret %s now: %s", name, e.Message)
	default:
		return failure.New(failure.SecretRefused, about,
			"the control plane refused the request for the Secret %s: %s", name, e.Message)
	}
}
