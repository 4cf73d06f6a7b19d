package consumers

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/topology"
)

const (
	queue            = "state"
	subscribeTimeout = 5 * time.Second
	// maxWaiting requests; a service repeats a request that is dropped.
	maxWaiting = 256
)

// Responder answers the requests of services for consumers, one after the other. Any number of replicas may run.
type Responder struct {
	Direct

	Logger *slog.Logger
}

// Run answers until ctx is done. It calls ready when it is subscribed.
func (r *Responder) Run(ctx context.Context, ready func()) error {
	conn := r.JetStream.Conn()
	requests := make(chan *nats.Msg, maxWaiting)
	sub, err := conn.ChanQueueSubscribe(r.Cell.Prefix(topology.FamilyConsumer)+".*", queue, requests)
	if err != nil {
		return fmt.Errorf("subscribe to requests for consumers: %w", err)
	}
	defer sub.Unsubscribe() //nolint:errcheck // the connection may be gone
	subscribing, cancel := context.WithTimeout(ctx, subscribeTimeout)
	defer cancel()
	if err := conn.FlushWithContext(subscribing); err != nil {
		return fmt.Errorf("subscribe to requests for consumers: %w", err)
	}
	ready()
	for {
		select {
		case <-ctx.Done():
			return nil
		case msg := <-requests:
			r.answer(ctx, msg)
		}
	}
}

func (r *Responder) answer(ctx context.Context, msg *nats.Msg) {
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	subject, err := topology.Parse(msg.Subject)
	if err != nil {
		r.Logger.WarnContext(ctx, "ignored a request for a consumer", logkey.Error(err))
		return
	}
	service := subject.Tokens[0]
	var reply topology.ConsumerReply
	if reply.Name, err = r.requested(ctx, service, msg.Data); err != nil {
		reply.Error = err.Error()
		r.Logger.WarnContext(ctx, "created no consumer for a service", slog.String(logkey.Service, service),
			logkey.Error(err))
	}
	raw, err := json.Marshal(reply)
	if err == nil {
		err = msg.Respond(raw)
	}
	if err != nil {
		r.Logger.WarnContext(ctx, "answering a request for a consumer failed; the service retries",
			slog.String(logkey.Service, service), logkey.Error(err))
	}
}
