package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/relay/audit"
	"lockstep.internal/services/relay/registry"
)

const (
	serviceName = "relay"
	// maxUntold is how many comings and goings may wait to be told; then agents wait.
	maxUntold = 10_000
	// retryMax is the longest pause before what could not be published is tried again.
	retryMax = 5 * time.Second
)

// Teller publishes who comes and goes, and what passed, on the stream AGENTS. It is made by [NewTeller].
type Teller struct {
	js      jetstream.JetStream
	cell    topology.Cell
	relayID string
	logger  *slog.Logger
	untold  chan *nats.Msg
}

// NewTeller makes the one of a relay. Comings and goings are published while Run runs.
func NewTeller(js jetstream.JetStream, cell topology.Cell, relayID string, logger *slog.Logger) *Teller {
	return &Teller{js: js, cell: cell, relayID: relayID, logger: logger, untold: make(chan *nats.Msg, maxUntold)}
}

// Connected tells that a connection was made.
func (t *Teller) Connected(c registry.Connection) {
	if msg := t.connected(c, c.ConnectedAt); msg != nil {
		t.untold <- msg
	}
}

// Again tells that a connection is there which was told to be lost. It does not wait: false is that too much waits already.
func (t *Teller) Again(c registry.Connection) bool {
	msg := t.connected(c, time.Now())
	if msg == nil {
		return true
	}
	select {
	case t.untold <- msg:
		return true
	default:
		return false
	}
}

// Disconnected tells that it is no more. However many relays say so of one, it counts once.
func (t *Teller) Disconnected(c registry.Connection, at time.Time, why events.DisconnectReason) {
	if msg := t.disconnected(c, at, why); msg != nil {
		t.untold <- msg
	}
}

// Lost tells of connections whose relay has ended without a word, and returns when that is stored.
func (t *Teller) Lost(ctx context.Context, lost []registry.Connection) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	under := make([]jetstream.PubAckFuture, 0, len(lost))
	for _, c := range lost {
		msg := t.disconnected(c, time.Now(), events.DisconnectReasonLost)
		if msg == nil {
			continue
		}
		ack, err := t.js.PublishMsgAsync(msg)
		if err != nil {
			return fmt.Errorf("publish on %s: %w", msg.Subject, err)
		}
		under = append(under, ack)
	}
	for _, ack := range under {
		select {
		case <-ack.Ok():
		case err := <-ack.Err():
			return fmt.Errorf("publish on %s: %w", ack.Msg().Subject, err)
		case <-ctx.Done():
			return fmt.Errorf("publish on %s: %w", ack.Msg().Subject, context.Cause(ctx))
		}
	}
	return nil
}

func (t *Teller) connected(c registry.Connection, at time.Time) *nats.Msg {
	return t.told(t.cell.AgentConnected(c.AgentID), event.Attributes{
		Type: events.TypeAgentConnected, Subject: strconv.FormatInt(c.AgentID, 10), ID: identity(c, "connected"), Time: at.UTC().Truncate(time.Millisecond),
	}, events.AgentConnected{
		AgentID: int(c.AgentID), ConnectionID: decimal(c.ID), RelayID: c.RelayID, ProjectID: int(c.ProjectID), Version: c.Version, Commit: c.Commit,
		PodNamespace: c.PodNamespace, PodName: c.PodName, ConnectedAt: c.ConnectedAt,
	})
}

func (t *Teller) disconnected(c registry.Connection, at time.Time, why events.DisconnectReason) *nats.Msg {
	at = at.UTC().Truncate(time.Millisecond)
	return t.told(t.cell.AgentDisconnected(c.AgentID), event.Attributes{
		Type: events.TypeAgentDisconnected, Subject: strconv.FormatInt(c.AgentID, 10), ID: identity(c, "disconnected"), Time: at,
	}, events.AgentDisconnected{
		AgentID: int(c.AgentID), ConnectionID: decimal(c.ID), RelayID: c.RelayID, ProjectID: int(c.ProjectID), Version: c.Version, Commit: c.Commit,
		PodNamespace: c.PodNamespace, PodName: c.PodName, ConnectedAt: c.ConnectedAt, DisconnectedAt: at, Reason: why,
	})
}

// identity of what is told of a connection. The same is told once; what is told again of one that was not lost is something else.
func identity(c registry.Connection, what string) string {
	id := decimal(c.ID) + "/" + what
	if c.Revived > 0 {
		id += "/" + strconv.Itoa(c.Revived)
	}
	return id
}

// told is a message, or nil where there cannot be one.
func (t *Teller) told(subject string, a event.Attributes, data any) *nats.Msg {
	msg, err := t.message(subject, a, data)
	if err != nil { // of what is known of a connection, nothing can be in the way
		t.logger.Error("an event cannot be written", slog.String("subject", subject), slog.Any("error", err))
		return nil
	}
	return msg
}

func (t *Teller) message(subject string, a event.Attributes, data any) (*nats.Msg, error) {
	a.Source = event.ServiceSource(string(t.cell), serviceName)
	e, err := event.New(a, data)
	if err != nil {
		return nil, fmt.Errorf("write the event: %w", err)
	}
	msg, err := event.Encode(e, subject)
	if err != nil {
		return nil, fmt.Errorf("write the event: %w", err)
	}
	msg.Header.Set(nats.MsgIdHdr, a.ID)
	return msg, nil
}

// Run publishes comings and goings in their order until ctx is done, and then what there is, until finish is done.
func (t *Teller) Run(ctx, finish context.Context) error {
	for {
		select {
		case msg := <-t.untold:
			if err := t.insist(ctx, finish, msg); err != nil {
				return err
			}
			continue
		default:
		}
		select {
		case msg := <-t.untold:
			if err := t.insist(ctx, finish, msg); err != nil {
				return err
			}
		case <-ctx.Done():
			if len(t.untold) == 0 {
				return nil
			}
		}
	}
}

// insist publishes one message: again and again until ctx is done, and after that until finish is.
func (t *Teller) insist(ctx, finish context.Context, msg *nats.Msg) error {
	pauses := backoff.NewExponentialBackOff()
	pauses.MaxInterval = retryMax
	_, err := backoff.Retry(finish, func() (struct{}, error) { return struct{}{}, t.publish(finish, msg) }, backoff.WithBackOff(pauses), backoff.WithMaxElapsedTime(0),
		backoff.WithNotify(func(err error, pause time.Duration) {
			t.logger.WarnContext(ctx, "who has come or gone could not be told, and is tried again", slog.Any("error", err), slog.Duration("delay", pause))
		}))
	if err != nil {
		return fmt.Errorf("tell who has come or gone: %w", err)
	}
	return nil
}

func (t *Teller) publish(ctx context.Context, msg *nats.Msg) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	if _, err := t.js.PublishMsg(ctx, msg); err != nil {
		return fmt.Errorf("publish on %s: %w", msg.Subject, err)
	}
	return nil
}

// Publish stores a batch of the audit trail.
func (t *Teller) Publish(ctx context.Context, b audit.Batch) error {
	data := events.AgentRequests{AgentID: int(b.AgentID), Requests: make([]events.AgentRequest, len(b.Records))}
	for i, r := range b.Records {
		data.Requests[i] = t.request(r)
	}
	msg, err := t.message(t.cell.AgentRequests(b.AgentID), event.Attributes{
		Type: events.TypeAgentRequests, Subject: strconv.FormatInt(b.AgentID, 10), ID: b.ID, Time: b.At,
	}, data)
	if err != nil {
		return err
	}
	if half := len(b.Records) / 2; half > 0 && len(msg.Data) > maxRequests {
		first, second := b, b
		first.ID, first.Records = b.ID+"/1", b.Records[:half]
		second.ID, second.Records = b.ID+"/2", b.Records[half:]
		return errors.Join(t.Publish(ctx, first), t.Publish(ctx, second))
	}
	return t.publish(ctx, msg)
}

// maxRequests is the largest event about requests, in bytes; a message's headers need the rest.
const maxRequests = topology.MaxMessageSize - 64<<10

func (t *Teller) request(r audit.Record) events.AgentRequest {
	out := events.AgentRequest{
		RequestID: r.RequestID, RelayID: t.relayID, Phase: events.RequestPhase(r.Phase), Protocol: events.RequestProtocol(r.Protocol), Target: r.Target,
		Verb: r.Verb, Method: r.Method, Path: r.Path, Status: r.Status, StartedAt: r.StartedAt.UTC().Truncate(time.Millisecond), BytesSent: int(r.BytesSent), BytesReceived: int(r.BytesReceived), Error: r.Error,
		Caller: events.RequestCaller{Kind: events.CallerKindUser, UserID: int(r.UserID)},
	}
	if r.UserID == 0 {
		out.Caller = events.RequestCaller{Kind: events.CallerKindService, Subject: r.Subject}
	}
	if r.ConnectionID != 0 {
		out.ConnectionID = decimal(r.ConnectionID)
	}
	if r.Phase == audit.Ended {
		took := int(r.Duration.Milliseconds())
		out.DurationMs = &took
	}
	if r.Resource != (audit.Resource{}) {
		out.Resource = &events.RequestResource{
			Group: r.Resource.Group, Version: r.Resource.Version, Resource: r.Resource.Resource, Subresource: r.Resource.Subresource,
			Namespace: r.Resource.Namespace, Name: r.Resource.Name,
		}
	}
	return out
}

func decimal(id int64) string { return strconv.FormatInt(id, 10) }
