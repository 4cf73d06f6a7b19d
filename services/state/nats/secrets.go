package nats

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/seal"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/domain"
	"lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/vault"
)

const (
	secretQueue      = "state"
	secretBuffer     = 256
	secretConcurrent = 8
	subscribeTimeout = 5 * time.Second
)

// SecretResponder answers dispatchers that ask for the values of a Secret: sealed to the agent of the subject, which is who asks, and only for a
// workspace of that agent. Any number may run.
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
	requests := make(chan *nats.Msg, secretBuffer)
	sub, err := r.Conn.ChanQueueSubscribe(r.Cell.Prefix(topology.FamilySecret)+".*.*", secretQueue, requests)
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
	var working errgroup.Group
	working.SetLimit(secretConcurrent)
	defer working.Wait() //nolint:errcheck // answers report their own errors
	for {
		select {
		case <-ctx.Done():
			return nil
		case msg := <-requests:
			working.Go(func() error {
				r.answer(ctx, msg)
				return nil
			})
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
