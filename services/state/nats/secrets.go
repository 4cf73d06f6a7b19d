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
	"lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/vault"
	"lockstep.internal/services/state/workspace"
)

const (
	secretQueue = "state"
	// secretQueueLimit of one agent. A dispatcher sends few requests at a time and repeats unanswered ones.
	secretQueueLimit = 64
	secretConcurrent = 8
	subscribeTimeout = 5 * time.Second
)

// SecretResponder answers a dispatcher's request for the values of a Secret. The values are sealed to the agent
// in the subject and belong to a workspace of that agent. Agents are served in turn; requests beyond the
// limit of an agent are dropped. Any number of replicas may run.
type SecretResponder struct {
	Conn       *nats.Conn
	Cell       topology.Cell
	Pool       *pgxpool.Pool
	Directory  *postgres.Directory
	Workspaces *postgres.Workspaces
	Secrets    *postgres.Secrets
	Logger     *slog.Logger
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
		r.Logger.DebugContext(ctx, "dropped a request for secrets: the agent has too many", slog.Int64("agent_id", agent))
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
		r.Logger.WarnContext(ctx, "answer a request for secrets failed; the dispatcher repeats it",
			slog.String("subject", msg.Subject), slog.Any("error", err))
	}
}

func (r *SecretResponder) reply(ctx context.Context, msg *nats.Msg) (seal.Reply, error) {
	subject, err := topology.Parse(msg.Subject)
	if err != nil {
		return seal.Reply{}, fault.Wrap(err, errcode.InvalidArgument, "the subject names no workspace of an agent")
	}
	agentID, err := subject.Agent()
	if err != nil {
		return seal.Reply{}, fault.Wrap(err, errcode.InvalidArgument, "the subject names no workspace of an agent")
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
	// An agent must not learn about other agents' workspaces.
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
		return seal.Reply{}, fault.New(
			errcode.Conflict,
			"the values of Secret %q have changed: request them with the newer revision",
			request.Name,
		)
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

// byKey replaces the paths of files by the keys of the Secret.
func byKey(files seal.Values) seal.Values {
	named := make(seal.Values, len(files))
	for path, content := range files {
		named[workspace.SecretFileKey(path)] = content
	}
	return named
}
