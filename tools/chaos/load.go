package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsconn"
	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/stored"
	"lockstep.internal/libs/topology"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/history"
	"lockstep.internal/tools/replay"
	"lockstep.internal/tools/stack"
)

// recordingFile is the name of the recording in the folder of a run.
const recordingFile = "recording.ndjson"

const (
	callers = 2
	// quietTimeout is how long the system has to publish everything after the load.
	quietTimeout = 2 * time.Minute
	judgePause   = 2 * time.Second
)

// Options of a run.
type Options struct {
	Seed     uint64
	Duration time.Duration
	// Dir gets the recording, logs and data.
	Dir string
	// Programs is the folder of the services' programs.
	Programs string
	// Out gets the progress.
	Out io.Writer
}

// load is a run in progress.
type load struct {
	Options

	system  *system
	kube    kubernetes.Interface
	agents  map[string]int64
	project int64
	record  *recorder
	users   []*user
	changer *workloads
	callers []*caller
}

// RunLoad runs a system under load and faults and writes the recording. It returns an error if the load cannot go on,
// or if the system does not become what its users desire.
func RunLoad(ctx context.Context, opts Options) (err error) {
	l := &load{Options: opts}
	if l.record, err = newRecorder(filepath.Join(opts.Dir, recordingFile)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.record.close()) }()
	starting, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	if l.system, err = startSystem(starting, opts.Dir, opts.Programs, opts.Out); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.system.stop()) }()
	recording, stopRecording := context.WithCancel(ctx)
	recorded := make(chan error, 1)
	if err := l.prepare(starting); err != nil {
		stopRecording()
		return err
	}
	since, err := l.describe(ctx)
	if err != nil {
		stopRecording()
		return err
	}
	leases := fmt.Sprintf("lockstep-agent-%d", l.agents[firstAgent])
	go func() { recorded <- recordCluster(recording, l.kube, leases, since, l.record) }()
	err = l.run(ctx)
	if err == nil {
		err = l.awaitQuiet(ctx)
	}
	stopRecording()
	return errors.Join(err, <-recorded)
}

// prepare makes everything that puts load on the system.
func (l *load) prepare(ctx context.Context) error {
	var err error
	if l.kube, err = l.system.kube(); err != nil {
		return err
	}
	admin, err := l.system.Client()
	if err != nil {
		return err
	}
	projects, err := admin.Projects(ctx)
	if err != nil {
		return err
	}
	l.project = projects[0].GetId()
	if l.agents, err = l.system.addAgents(ctx, admin, l.project); err != nil {
		return err
	}
	for i := range users {
		name := fmt.Sprintf("user-%d", i)
		token, err := newUser(ctx, admin, name, l.project)
		if err != nil {
			return err
		}
		l.users = append(l.users, &user{
			kube: l.kube, apis: l.system.apiOf(token), name: name, project: l.project, agent: l.agents[firstAgent],
			rng: l.rng(1 + i), record: l.record,
		})
	}
	l.changer = &workloads{kube: l.kube, rng: l.rng(100)}
	for i := range callers {
		c := &caller{
			name: fmt.Sprintf("caller-%d", i), rng: l.rng(200 + i), agents: l.agents,
			names: slices.Sorted(maps.Keys(l.agents)), record: l.record,
		}
		for n := range relays {
			relay, err := admin.Relay(l.system.RelayURLOf(stack.RelayOf(n+1)), l.system.RelayCAFile())
			if err != nil {
				return err
			}
			c.relays = append(c.relays, relay)
		}
		l.callers = append(l.callers, c)
	}
	return nil
}

// rng returns a source of random numbers for one part of the load.
func (l *load) rng(stream int) *rand.Rand {
	return rand.New(rand.NewPCG(l.Seed, uint64(stream))) //nolint:gosec // repeatable
}

// newUser creates a user who may create workspaces, and returns a token.
func newUser(ctx context.Context, admin *client.API, name string, project int64) (string, error) {
	made, err := admin.Directory.CreateUser(ctx, connect.NewRequest(&statev1.CreateUserRequest{Username: name}))
	if err != nil {
		return "", fmt.Errorf("create user %s: %w", name, err)
	}
	id := made.Msg.GetUser().GetId()
	_, err = admin.Directory.PutMembership(ctx, connect.NewRequest(&statev1.PutMembershipRequest{
		Membership: &statev1.Membership{
			UserId: id, Scope: statev1.ScopeKind_SCOPE_KIND_PROJECT, ScopeId: project, Role: statev1.Role_ROLE_DEVELOPER,
		},
	}))
	if err != nil {
		return "", fmt.Errorf("add user %s to the project: %w", name, err)
	}
	token, err := admin.Tokens.CreateToken(ctx, connect.NewRequest(&statev1.CreateTokenRequest{Name: name, UserId: id}))
	if err != nil {
		return "", fmt.Errorf("create a token of user %s: %w", name, err)
	}
	return token.Msg.GetValue(), nil
}

// describe records what the run is, and returns the current version of the cluster.
func (l *load) describe(ctx context.Context) (string, error) {
	cluster, err := l.kube.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read the cluster's UID: %w", err)
	}
	now, err := l.kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return "", fmt.Errorf("read the cluster's version: %w", err)
	}
	l.record.write(entry{Run: &Run{
		Seed: l.Seed, Duration: l.Duration, Cluster: string(cluster.UID), Agent: l.agents[firstAgent],
		MaxWorkspaces: workspacesPerUser,
	}})
	return now.ResourceVersion, nil
}

// run puts load on the system while it has faults. Then it waits until everything is as its users desire.
func (l *load) run(ctx context.Context) error {
	if err := l.changer.createAll(ctx); err != nil {
		return err
	}
	faults := Schedule(l.Seed, l.Duration, l.system.faultTargets())
	group, ctx := errgroup.WithContext(ctx)
	loaded, cancel := context.WithTimeout(ctx, l.Duration)
	defer cancel()
	group.Go(func() error { return l.system.inject(ctx, faults, l.record) })
	group.Go(func() error { return l.changer.run(ctx, loaded) })
	for _, u := range l.users {
		group.Go(func() error { return u.run(ctx, loaded) })
	}
	for _, c := range l.callers {
		group.Go(func() error { return c.run(ctx, loaded) })
	}
	if err := group.Wait(); err != nil {
		return err //nolint:wrapcheck // it names the part
	}
	settling, ctx := errgroup.WithContext(context.WithoutCancel(ctx))
	settling.Go(func() error { return l.changer.finish(ctx) })
	for _, u := range l.users {
		settling.Go(func() error { return u.finish(ctx) })
	}
	return settling.Wait() //nolint:wrapcheck // it names the part
}

// awaitQuiet waits until the system has published everything: until the judgement of its streams is clean, or for
// quietTimeout. Then it records the streams.
func (l *load) awaitQuiet(ctx context.Context) error {
	cfg := natsconn.DefaultConfig()
	cfg.URL = config.URL("nats://" + l.system.nats.address())
	cfg.Name = "chaos"
	cfg.InboxPrefix = natsauth.InboxPrefix(natsauth.PrincipalOperator)
	cfg.NKeySeedFile = config.SecretFile(natsauth.SeedFile(filepath.Join(l.Dir, "nats"), natsauth.PrincipalOperator))
	conn, err := natsconn.Connect(ctx, cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := conn.JetStream()
	if err != nil {
		return err
	}
	deadline := time.Now().Add(quietTimeout)
	for {
		recording, err := l.record.read()
		if err != nil {
			return err
		}
		if recording.Messages, err = readStreams(ctx, js); err != nil {
			return err
		}
		found := Judge(recording)
		if len(found) == 0 || time.Now().After(deadline) || retry.Sleep(ctx, judgePause) != nil {
			for _, m := range recording.Messages {
				l.record.write(entry{Message: &m})
			}
			return nil
		}
		const waits = "  the system is not quiet yet: %d findings, such as %s\n"
		if _, err := fmt.Fprintf(l.Out, waits, len(found), found[0]); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
}

// readStreams returns all messages of all streams but DIRECTORY, which an operator may not read.
func readStreams(ctx context.Context, js jetstream.JetStream) ([]Message, error) {
	var all []Message
	for _, stream := range topology.Streams() {
		if stream.Name == topology.StreamDirectory {
			continue
		}
		read := func(m stored.Message) error {
			all = append(all, Message{Family: stream.Family, Record: history.Record{
				Subject: m.Subject, Sequence: m.Sequence, Header: m.Header, Data: m.Data,
			}})
			return nil
		}
		if err := replay.Run(ctx, js, stack.Cell, replay.Options{Subject: stream.Family + ".>"}, read); err != nil {
			return nil, fmt.Errorf("read stream %s: %w", stream.Name, err)
		}
	}
	return all, nil
}
