package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/relay/audit"
	"lockstep.internal/services/relay/registry"
)

const (
	serviceName = "relay"
	// maxQueued is the queue length. When it is full, connects and disconnects block.
	maxQueued = 10_000
	// maxRequestsEvent is the largest event with audit records, in bytes; leaves 64 KiB for headers.
	maxRequestsEvent = topology.MaxMessageSize - 64<<10
)

// publishRetry bounds the pauses between attempts to publish.
var publishRetry = retry.Policy{Min: 500 * time.Millisecond, Max: 5 * time.Second}

// EventPublisher publishes on the streams AGENTS and AUDIT. It may be used by many goroutines.
type EventPublisher struct {
	js      jetstream.JetStream
	cell    topology.Cell
	relayID string
	logger  *slog.Logger
	queue   chan *nats.Msg
}

// NewEventPublisher makes the publisher of a relay. [EventPublisher.Run] publishes connections and disconnections.
func NewEventPublisher(
	js jetstream.JetStream, cell topology.Cell, relayID string, logger *slog.Logger,
) *EventPublisher {
	return &EventPublisher{js: js, cell: cell, relayID: relayID, logger: logger, queue: make(chan *nats.Msg, maxQueued)}
}

// Connected queues an event. It blocks while the queue is full.
func (p *EventPublisher) Connected(c registry.Connection) {
	if msg := p.connected(c, c.ConnectedAt); msg != nil {
		p.queue <- msg
	}
}

// Republish queues the event of a connection that was published as lost by mistake. It does not block; false means
// the queue is full.
func (p *EventPublisher) Republish(c registry.Connection) bool {
	msg := p.connected(c, time.Now())
	if msg == nil {
		return true
	}
	select {
	case p.queue <- msg:
		return true
	default:
		return false
	}
}

// Disconnected queues an event. It blocks while the queue is full. Events of several relays about one connection have
// the same id, so JetStream drops repetitions within the duplicate window of the stream.
func (p *EventPublisher) Disconnected(c registry.Connection, at time.Time, reason events.DisconnectReason) {
	if msg := p.disconnected(c, at, reason); msg != nil {
		p.queue <- msg
	}
}

// PublishLost publishes connections of dead relays, and returns when the events are stored.
func (p *EventPublisher) PublishLost(ctx context.Context, lost []registry.Connection) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	acks := make([]jetstream.PubAckFuture, 0, len(lost))
	for _, c := range lost {
		msg := p.disconnected(c, time.Now(), events.DisconnectReasonLost)
		if msg == nil {
			continue
		}
		ack, err := p.js.PublishMsgAsync(msg)
		if err != nil {
			return fmt.Errorf("publish on %s: %w", msg.Subject, err)
		}
		acks = append(acks, ack)
	}
	for _, ack := range acks {
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

func (p *EventPublisher) connected(c registry.Connection, at time.Time) *nats.Msg {
	return p.messageOrNil(p.cell.AgentConnected(c.AgentID), event.Attributes{
		Type: events.TypeAgentConnected, Subject: strconv.FormatInt(c.AgentID, 10), ID: eventID(c, "connected"),
		Time: at.UTC().Truncate(time.Millisecond),
	}, events.AgentConnected{
		AgentID: int(c.AgentID), ConnectionID: decimal(c.ID), RelayID: c.RelayID, ProjectID: int(c.ProjectID),
		Version: c.Version, Commit: c.Commit, PodNamespace: c.PodNamespace, PodName: c.PodName, ConnectedAt: c.ConnectedAt,
	})
}

func (p *EventPublisher) disconnected(c registry.Connection, at time.Time, reason events.DisconnectReason) *nats.Msg {
	at = at.UTC().Truncate(time.Millisecond)
	return p.messageOrNil(p.cell.AgentDisconnected(c.AgentID), event.Attributes{
		Type: events.TypeAgentDisconnected, Subject: strconv.FormatInt(c.AgentID, 10), ID: eventID(c, "disconnected"),
		Time: at,
	}, events.AgentDisconnected{
		AgentID: int(c.AgentID), ConnectionID: decimal(c.ID), RelayID: c.RelayID, ProjectID: int(c.ProjectID),
		Version: c.Version, Commit: c.Commit, PodNamespace: c.PodNamespace, PodName: c.PodName, ConnectedAt: c.ConnectedAt,
		DisconnectedAt: at, Reason: reason,
	})
}

// eventID deduplicates events of a connection. A republished connection gets a new id.
func eventID(c registry.Connection, event string) string {
	id := decimal(c.ID) + "/" + event
	if c.Republished > 0 {
		id += "/" + strconv.Itoa(c.Republished)
	}
	return id
}

// messageOrNil logs an event that cannot be encoded, and returns nil. This cannot happen with valid connections.
func (p *EventPublisher) messageOrNil(subject string, a event.Attributes, data any) *nats.Msg {
	msg, err := p.message(subject, a, data)
	if err != nil {
		p.logger.Error("encoding an event failed", slog.String(logkey.Subject, subject), logkey.Error(err))
		return nil
	}
	return msg
}

func (p *EventPublisher) message(subject string, a event.Attributes, data any) (*nats.Msg, error) {
	a.Source = event.ServiceSource(string(p.cell), serviceName)
	e, err := event.New(a, data)
	if err != nil {
		return nil, fmt.Errorf("encode the event: %w", err)
	}
	msg, err := event.Encode(e, subject)
	if err != nil {
		return nil, fmt.Errorf("encode the event: %w", err)
	}
	msg.Header.Set(nats.MsgIdHdr, a.ID)
	return msg, nil
}

// Run publishes queued events in order until ctx is done, and then the rest of the queue, until drainCtx is done.
func (p *EventPublisher) Run(ctx, drainCtx context.Context) error {
	for {
		var msg *nats.Msg
		select {
		case msg = <-p.queue:
		default:
			select {
			case msg = <-p.queue:
			case <-ctx.Done():
				if len(p.queue) == 0 {
					return nil
				}
				continue
			}
		}
		if err := p.publishWithRetry(ctx, drainCtx, msg); err != nil {
			return err
		}
	}
}

// publishWithRetry publishes one message. It retries until drainCtx is done.
func (p *EventPublisher) publishWithRetry(ctx, drainCtx context.Context, msg *nats.Msg) error {
	publish := func() error { return p.publish(drainCtx, msg) }
	err := publishRetry.Do(drainCtx, publish, func(err error, pause time.Duration) {
		p.logger.WarnContext(ctx, "publishing an event failed; retrying", slog.String(logkey.Subject, msg.Subject),
			logkey.Error(err), slog.Duration(logkey.RetryIn, pause))
	})
	if err != nil {
		return fmt.Errorf("publish a connection event: %w", err)
	}
	return nil
}

func (p *EventPublisher) publish(ctx context.Context, msg *nats.Msg) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if _, err := p.js.PublishMsg(ctx, msg); err != nil {
		return fmt.Errorf("publish on %s: %w", msg.Subject, err)
	}
	return nil
}

// Publish stores a batch of audit records. It splits a batch that is too large for one event.
func (p *EventPublisher) Publish(ctx context.Context, b audit.Batch) error {
	data := events.AuditRequests{AgentID: int(b.AgentID), Requests: make([]events.AgentRequest, len(b.Records))}
	for i, r := range b.Records {
		data.Requests[i] = p.request(r)
	}
	msg, err := p.message(p.cell.AuditRequests(b.AgentID), event.Attributes{
		Type: events.TypeAuditRequests, Subject: strconv.FormatInt(b.AgentID, 10), ID: b.ID, Time: b.At,
	}, data)
	if err != nil {
		return err
	}
	if half := len(b.Records) / 2; half > 0 && len(msg.Data) > maxRequestsEvent {
		first, second := b, b
		first.ID, first.Records = b.ID+"/1", b.Records[:half]
		second.ID, second.Records = b.ID+"/2", b.Records[half:]
		return errors.Join(p.Publish(ctx, first), p.Publish(ctx, second))
	}
	return p.publish(ctx, msg)
}

func (p *EventPublisher) request(r audit.Record) events.AgentRequest {
	out := events.AgentRequest{
		RequestID: r.RequestID, RelayID: p.relayID, Phase: events.RequestPhase(r.Phase),
		Protocol: events.RequestProtocol(r.Protocol), Target: r.Target, Verb: r.Verb, Method: r.Method, Path: r.Path,
		Status: r.Status, StartedAt: r.StartedAt.UTC().Truncate(time.Millisecond), BytesSent: int(r.BytesSent),
		BytesReceived: int(r.BytesReceived), Error: r.Error,
		Caller: events.RequestCaller{Kind: events.CallerKindUser, UserID: int(r.UserID)},
	}
	if r.UserID == 0 {
		out.Caller = events.RequestCaller{Kind: events.CallerKindService, Subject: r.Subject}
	}
	if r.ConnectionID != 0 {
		out.ConnectionID = decimal(r.ConnectionID)
	}
	out.Count = max(1, r.Count)
	if r.Phase == audit.Ended {
		durationMs := int(r.Duration.Milliseconds())
		out.DurationMs = &durationMs
	}
	if r.Resource != (audit.Resource{}) {
		out.Resource = &events.RequestResource{
			Group: r.Resource.Group, Version: r.Resource.Version, Resource: r.Resource.Resource,
			Subresource: r.Resource.Subresource, Namespace: r.Resource.Namespace, Name: r.Resource.Name,
		}
	}
	return out
}

func decimal(id int64) string { return strconv.FormatInt(id, 10) }
