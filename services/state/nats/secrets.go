package nats

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/seal"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/secret"
)

const (
	secretQueue = "state"
	// secretQueueLimit is the maximum number of queued requests per agent. A dispatcher retries unanswered requests.
	secretQueueLimit = 64
	secretConcurrent = 8
	subscribeTimeout = 5 * time.Second
)

// SecretResponder answers a dispatcher's request for the values of a Secret. Package secret decides and seals. Requests
// are served round-robin by agent; requests above the limit of an agent are dropped. Any number of replicas may run.
type SecretResponder struct {
	Conn   *nats.Conn
	Cell   topology.Cell
	Sealer *secret.Sealer
	Logger *slog.Logger
}

// Run answers until ctx is done. It calls ready when it is subscribed.
func (r *SecretResponder) Run(ctx context.Context, ready func()) error {
	requests := newFairQueue(secretQueueLimit)
	sub, err := r.Conn.QueueSubscribe(
		r.Cell.Prefix(topology.FamilySecret)+".*.*",
		secretQueue,
		func(msg *nats.Msg) { r.queue(ctx, requests, msg) },
	)
	if err != nil {
		return fmt.Errorf("subscribe to requests for secrets: %w", err)
	}
	defer sub.Unsubscribe() //nolint:errcheck // the connection may be gone
	subscribing, cancel := context.WithTimeout(ctx, subscribeTimeout)
	defer cancel()
	if err := r.Conn.FlushWithContext(subscribing); err != nil {
		return fmt.Errorf("subscribe to requests for secrets: %w", err)
	}
	ready()
	var working sync.WaitGroup
	for range secretConcurrent {
		working.Go(func() { r.serve(ctx, requests) })
	}
	working.Wait()
	return nil
}

func (r *SecretResponder) queue(ctx context.Context, requests *fairQueue, msg *nats.Msg) {
	var agent int64 // 0 for an invalid subject: the answer is an error
	if subject, err := topology.Parse(msg.Subject); err == nil {
		agent, _ = subject.Agent()
	}
	if !requests.push(agent, msg) {
		r.Logger.DebugContext(ctx, "dropped a secrets request: the agent's queue is full", slog.Int64(logkey.AgentID, agent))
	}
}

// serve answers requests one by one.
func (r *SecretResponder) serve(ctx context.Context, requests *fairQueue) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-requests.ready:
			if msg, ok := requests.pop(); ok {
				r.answer(ctx, msg)
			}
		}
	}
}

func (r *SecretResponder) answer(ctx context.Context, msg *nats.Msg) {
	var reply seal.Reply
	request, err := decodeSecretRequest(msg)
	if err == nil {
		reply.Box, err = r.Sealer.Seal(ctx, request)
	}
	if err != nil {
		public := fault.Public(ctx, r.Logger, err)
		reply.Error = &seal.ReplyError{Code: public.Code, Message: public.Message}
	}
	raw, err := json.Marshal(reply)
	if err == nil {
		err = msg.Respond(raw)
	}
	if err != nil {
		r.Logger.WarnContext(ctx, "answering a secrets request failed; the dispatcher retries",
			slog.String(logkey.Subject, msg.Subject), logkey.Error(err))
	}
}

// decodeSecretRequest decodes a request. The permissions of an agent restrict it to subjects with its id.
func decodeSecretRequest(msg *nats.Msg) (secret.Request, error) {
	var request secret.Request
	subject, err := topology.Parse(msg.Subject)
	if err != nil {
		return request, fault.Wrap(err, errcode.InvalidArgument, "the subject names no workspace of an agent")
	}
	if request.AgentID, err = subject.Agent(); err != nil {
		return request, fault.Wrap(err, errcode.InvalidArgument, "the subject names no workspace of an agent")
	}
	if request.WorkspaceID, err = uuid.Parse(subject.Tokens[1]); err != nil {
		return request, fault.Wrap(err, errcode.InvalidArgument, "workspace %q is not a UUID", subject.Tokens[1])
	}
	if err := json.Unmarshal(msg.Data, &request.Request); err != nil {
		return request, fault.Wrap(err, errcode.InvalidArgument, "the request is not {\"name\": …, \"digest\": …}")
	}
	return request, nil
}
