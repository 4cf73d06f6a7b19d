package nats

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/seal"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/domain"
	"lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/vault"
)

const (
	secretQueue = "state"
	// How many requests of one agent wait; a dispatcher asks for a few at a time, and again when it gets no answer.
	secretLine       = 64
	secretConcurrent = 8
	subscribeTimeout = 5 * time.Second
)

// SecretResponder answers dispatchers that ask for the values of a Secret: sealed to the agent of the subject, which is who asks, and only for a
// workspace of that agent. Agents take turns, and what one asks beyond its line is dropped. Any number may run.
type SecretResponder struct {
	Conn       *nats.Conn
	Cell       topology.Cell
	Pool       *pgxpool.Pool
	Directory  *postgres.Directory
	Workspaces *postgres.Workspaces
	Secrets    *postgres.Secrets
	Logger     *slog.Logger
}

// Run answers until ctx is done. ready is called once requests arrive.
func (r *SecretResponder) Run(ctx context.Context, ready func()) error {
	requests := newTurns(secretLine)
	sub, err := r.Conn.QueueSubscribe(r.Cell.Prefix(topology.FamilySecret)+".*.*", secretQueue, func(msg *nats.Msg) { r.queue(ctx, requests, msg) })
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

func (r *SecretResponder) queue(ctx context.Context, requests *turns, msg *nats.Msg) {
	var agent int64 // whoever has no id shares one line, to be told so
	if subject, err := topology.Parse(msg.Subject); err == nil {
		agent, _ = subject.Agent()
	}
	if !requests.join(agent, msg) {
		r.Logger.DebugContext(ctx, "an agent asks for more secrets at once than are given", "agent", agent)
	}
}

// serve answers one request after the other.
func (r *SecretResponder) serve(ctx context.Context, requests *turns) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-requests.some:
			if msg, ok := requests.take(); ok {
				r.answer(ctx, msg)
			}
		}
	}
}

func (r *SecretResponder) answer(ctx context.Context, msg *nats.Msg) {
	reply, err := r.reply(ctx, msg)
	if err != nil {
		public := fault.Public(ctx, r.Logger, err)
		reply = seal.Reply{Error: &seal.ReplyError{Code: public.Code, Message: public.Message}}
	}
	raw, err := json.Marshal(reply)
	if err == nil {
		err = msg.Respond(raw)
	}
	if err != nil {
		r.Logger.WarnContext(ctx, "answer a request for secrets: the dispatcher asks again", "subject", msg.Subject, "error", err)
	}
}

func (r *SecretResponder) reply(ctx context.Context, msg *nats.Msg) (seal.Reply, error) {
	subject, err := topology.Parse(msg.Subject)
	if err != nil {
		return seal.Reply{}, fault.Wrap(err, errcode.InvalidArgument, "the subject is not one of a workspace's secrets")
	}
	agentID, err := subject.Agent()
	if err != nil {
		return seal.Reply{}, fault.Wrap(err, errcode.InvalidArgument, "the subject is not one of a workspace's secrets")
	}
	workspaceID, err := uuid.Parse(subject.Tokens[1])
	if err != nil {
		return seal.Reply{}, fault.Wrap(err, errcode.InvalidArgument, "workspace %q is not a UUID", subject.Tokens[1])
	}
	var request seal.Request
	if err := json.Unmarshal(msg.Data, &request); err != nil {
		return seal.Reply{}, fault.Wrap(err, errcode.InvalidArgument, "the request is not {\"name\": …, \"digest\": …}")
	}
	agent, err := r.Directory.Agent(ctx, agentID)
	if err != nil {
		return seal.Reply{}, err
	}
	w, err := r.Workspaces.Get(ctx, r.Pool, postgres.WorkspaceReference{ID: workspaceID})
	if err != nil {
		return seal.Reply{}, err
	}
	// Another agent's workspace does not exist for this one.
	if w.AgentID != agentID || agent.Revoked {
		return seal.Reply{}, fault.New(errcode.NotFound, "workspace %s does not exist", workspaceID)
	}
	var kind vault.Kind
	switch request.Digest {
	case w.Spec.SecretEnvDigest:
		kind = vault.Env
	case w.Spec.SecretFilesDigest:
		kind = vault.Files
	}
	if kind == "" || request.Digest == "" {
		return seal.Reply{}, fault.New(errcode.Conflict, "the values of Secret %q have changed: a newer revision names them", request.Name)
	}
	values, err := r.Secrets.Get(ctx, r.Pool, w.ID, kind)
	if err != nil {
		return seal.Reply{}, err
	}
	if kind == vault.Files {
		values = byKey(values)
	}
	box, err := values.Seal(request.Label(w.ID.String()), agent.CurvePublicKey, r.Secrets.Vault.Key())
	if err != nil {
		return seal.Reply{}, fmt.Errorf("seal the secrets of workspace %s: %w", w.ID, err)
	}
	return seal.Reply{Box: box}, nil
}

// byKey names the contents of files, kept by path, as their Secret does: a path may have characters that a key may not.
func byKey(files seal.Values) seal.Values {
	named := make(seal.Values, len(files))
	for path, content := range files {
		named[domain.SecretFileKey(path)] = content
	}
	return named
}
