package security_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/detection/watchertest"
	"lockstep.internal/tools/stack"
	"lockstep.internal/tools/testkit/natstest"
)

// otherCluster is the cluster of the attacker's project. Its watcher is simulated with the agent's
// real credentials.
const otherCluster = "cluster-elsewhere"

// tenant is a project with rollouts and a user who may read them.
type tenant struct {
	cli fixture.CLI
	// workload is the argument of commands; cluster is its cluster's UID.
	workload, cluster string
	// rollout is the id of one of its rollouts.
	rollout string
	// roll starts and completes a rollout to the revision.
	roll     func()
	revision string
}

// rolloutsAreVisibleToOwnProjectOnly lets two projects roll out at once and queries each one for
// the other's rollouts.
func rolloutsAreVisibleToOwnProjectOnly(s *isolationScenario, ours *fixture.Workload) {
	t := s.T
	i := newAttacker(s.System, s.attacker, s.own.ID)
	w := &watchertest.Watcher{
		Cell:    stack.Cell,
		Agent:   s.attacker.AgentID,
		Cluster: otherCluster,
		Now:     time.Now().Add(-time.Hour).UTC().Truncate(time.Second),
		Publish: func(m *nats.Msg) error { i.publish(m); return nil },
	}
	theirs := w.Deployment("theirs", nil)
	for _, step := range []func() error{
		func() error { return w.List("r1", theirs) }, func() error { return theirs.Roll("2") }, theirs.Finish,
	} {
		require.NoError(t, step())
	}
	i.flush()
	awaitFact(s.System, otherCluster, "completed", "2")

	here := &tenant{
		workload: "isolated/deployment/web",
		cluster:  clusterUID(s.System),
		revision: "r3",
		cli:      s.commandsOf("here", s.ProjectID),
		roll:     func() { ours.SetImage(fixture.ThirdImage) },
	}
	there := &tenant{
		workload: watchertest.Namespace + "/deployment/theirs",
		cluster:  otherCluster,
		revision: "r3",
		cli:      s.commandsOf("there", s.project),
		roll: func() {
			require.NoError(t, theirs.Roll("3"))
			require.NoError(t, theirs.Finish())
			i.flush()
		},
	}
	tenants := []*tenant{here, there}
	for _, own := range tenants {
		own.awaitKnown()
	}
	for n, own := range tenants {
		own.requireSeesOnlyOwn(tenants[1-n])
	}
	watches := make([]*fixture.Process, len(tenants))
	for n, own := range tenants {
		watches[n] = own.cli.Start("deploys", "watch", "--ended", "100")
		watches[n].AwaitLine(own.workload, "r2")
	}
	for _, own := range tenants {
		own.roll()
	}
	for n, own := range tenants {
		lineWithout(watches[n], tenants[1-n].workload, own.workload, own.revision, "completed")
	}
	// Each has received its own last fact, so the other's would have arrived.
	for n := range tenants {
		require.Zero(t, watches[n].Interrupt())
		for line := range watches[n].Lines {
			require.NotContains(t, line, tenants[1-n].workload)
		}
	}
	// No fact follows these.
	awaitDrained(s.System, "isolated", 3)
	awaitFact(s.System, otherCluster, "drained", "3")
	s.subscribersReceiveOwnFacts(tenants)
	require.Empty(t, i.violations)
}

// commandsOf returns the CLI of a user who may read one project only.
func (s *isolationScenario) commandsOf(name string, project int64) fixture.CLI {
	s.T.Helper()
	return s.CLI().With("LOCKSTEP_TOKEN=" + s.NewUser(name, project, statev1.Role_ROLE_READER).Token)
}

func clusterUID(s *fixture.System) string {
	s.T.Helper()
	var uid string
	for _, r := range s.Records(topology.FamilyDeploy) {
		if parsed, err := topology.Parse(r.Subject); err == nil && parsed.Tokens[0] != otherCluster {
			uid = parsed.Tokens[0]
		}
	}
	require.NotEmpty(s.T, uid)
	return uid
}

// awaitFact waits for a fact about a rollout of the simulated Deployment.
func awaitFact(s *fixture.System, cluster, fact, revision string) {
	s.T.Helper()
	require.Eventually(s.T, func() bool {
		return slices.ContainsFunc(s.Records(topology.FamilyDeploy), func(r fixture.Record) bool {
			return r.Subject == stack.Cell.Deploy(cluster, watchertest.Namespace, "deployment", "theirs", fact) &&
				strings.Contains(string(r.Data), `"revision":`+revision)
		})
	}, fixture.Timeout, fixture.PollInterval)
}

// awaitKnown waits until the service knows the tenant's user.
func (own *tenant) awaitKnown() {
	t := own.cli.T
	t.Helper()
	require.Eventually(t, func() bool {
		code, out, _ := own.cli.Run("deploys", "list")
		return code == 0 && strings.Contains(out, own.workload)
	}, fixture.Timeout, fixture.PollInterval)
}

// requireSeesOnlyOwn checks that a tenant sees its own rollouts and none of the other's, even by
// name.
func (own *tenant) requireSeesOnlyOwn(other *tenant) {
	t := own.cli.T
	t.Helper()
	namespace, name := strings.Split(other.workload, "/")[0], strings.Split(other.workload, "/")[2]
	for _, query := range [][]string{
		{"list", "--limit", "0"},
		{"list", other.workload},
		{"list", "--cluster", other.cluster},
		{"list", "-n", namespace},
		{"list", "--name", name},
		{"list", "-l", "app=" + name},
		{"stats", "--since", "24h"},
		{"stats", "--since", "24h", "--cluster", other.cluster},
		{"stats", "--since", "24h", "-n", namespace},
	} {
		for _, format := range []string{"table", "json"} {
			out := own.cli.OK(append([]string{"deploys", "-o", format}, query...)...)
			require.NotContains(t, out, other.workload, query)
			require.NotContains(t, out, `"cluster_uid": "`+other.cluster, query)
		}
	}
	require.Contains(t, own.cli.OK("deploys", "stats", "--since", "24h"), own.workload)
	list := own.cli.OK("deploys", "list", own.workload, "-o", "json")
	found := fixture.ParseOutput(t, list, &deploysv1.ListRolloutsResponse{}).GetRollouts()
	require.NotEmpty(t, found)
	own.rollout = found[0].GetId()
	require.Contains(t, own.cli.OK("deploys", "get", own.rollout), own.workload)
	for _, thing := range []string{other.workload, other.rollout} {
		if thing != "" {
			require.Contains(t, own.cli.Fails(5, "deploys", "get", thing), "does not exist")
			require.Contains(t, other.cli.OK("deploys", "get", thing), other.workload, "the rollout exists")
		}
	}
	for _, command := range [][]string{
		{"clusters"},
		{"clusters", "release", own.cluster, "--yes"},
		{"clusters", "release", other.cluster, "--yes"},
		{"sinks"},
	} {
		refusal := own.cli.Fails(4, append([]string{"deploys"}, command...)...)
		require.Contains(t, refusal, "is not an administrator of this cell")
	}
}

// lineWithout waits for a line with all of the words and checks that no line before contains the
// forbidden text.
func lineWithout(r *fixture.Process, unseen string, words ...string) {
	r.T.Helper()
	for {
		line := r.AwaitLine()
		require.NotContains(r.T, line, unseen)
		if fixture.ContainsAll(line, words) {
			return
		}
	}
}

// subscribersReceiveOwnFacts lets a subscriber of each tenant read the facts of its cluster and try
// to read the other's.
func (s *isolationScenario) subscribersReceiveOwnFacts(tenants []*tenant) {
	t := s.T
	cli := s.CLI()
	credentials := make([]natsauth.SubscriberCredentials, len(tenants))
	for n, own := range tenants {
		name := []string{"tool-here", "tool-there"}[n]
		file := filepath.Join(t.TempDir(), name+".json")
		filter := "deploy." + own.cluster + ".>"
		cli.OK("subscriber", "create", name, "--filter", filter, "--from-beginning", "--credentials", file)
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		credentials[n] = readSubscriber(t, raw)
		s.Secrets.Add(credentials[n].Password)
	}
	for n, own := range tenants {
		mine, theirs := credentials[n], credentials[1-n]
		prefix := stack.Cell.Prefix(topology.FamilyDeploy) + "." + own.cluster + "."
		reader, violations := connectSubscriber(t, mine, mine.User)
		consumer, err := natstest.Open(t, reader).Consumer(t.Context(), mine.Stream, mine.Consumer)
		require.NoError(t, err)
		want := 0
		for _, r := range s.Records(topology.FamilyDeploy) {
			if strings.HasPrefix(r.Subject, prefix) {
				want++
			}
		}
		require.Positive(t, want)
		for received := range want {
			m, err := consumer.Next(jetstream.FetchMaxWait(fixture.Timeout))
			require.NoError(t, err, "%d of %d", received, want)
			require.True(t, strings.HasPrefix(m.Subject(), prefix), m.Subject())
			require.NoError(t, m.Ack())
		}
		info, err := consumer.Info(t.Context())
		require.NoError(t, err)
		require.Zero(t, info.NumPending, "it has received all facts")
		for _, subject := range []string{
			"$JS.API.CONSUMER.MSG.NEXT." + theirs.Stream + "." + theirs.Consumer,
			"$JS.API.CONSUMER.INFO." + theirs.Stream + "." + theirs.Consumer,
			"$JS.API.STREAM.MSG.GET." + theirs.Stream, "$JS.API.DIRECT.GET." + theirs.Stream,
			"$JS.API.CONSUMER.CREATE." + theirs.Stream,
		} {
			require.NoError(t, reader.PublishRequest(subject, mine.InboxPrefix+".x", []byte("{}")))
			requireDenied(t, reader, violations, subject)
		}
		_, err = reader.SubscribeSync(theirs.Filter)
		require.NoError(t, err)
		requireDenied(t, reader, violations, theirs.Filter)

		listener, violations := connectSubscriber(t, mine, mine.Listener)
		for _, subject := range []string{
			theirs.Filter, stack.Cell.All(topology.FamilyDeploy), stack.Cell.All(topology.FamilyObserved), ">",
		} {
			_, err = listener.SubscribeSync(subject)
			require.NoError(t, err)
			requireDenied(t, listener, violations, subject)
		}
		_, err = listener.SubscribeSync(mine.Filter)
		require.NoError(t, err)
		require.NoError(t, listener.FlushTimeout(fixture.Timeout))
		require.Empty(t, violations, "its own subjects are allowed")
	}
}
