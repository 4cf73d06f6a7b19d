package ingest_test

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/orphan"
	"lockstep.internal/services/state/workspace"
)

// history generates random events of two agents, users and invalid senders.
type history struct {
	*fixture

	random     *rand.Rand
	agents     []*fakeAgent
	workspaces []workspace.Workspace
	versions   map[int64]int
	orphans    int
	// lastRevision is the last reported revision of a workspace. If it is not nil, revisions never decrease.
	lastRevision map[uuid.UUID]int
	// deployments and pods cache the content of each version, so that one version always has the same content.
	deployments map[string]deploymentReport
	pods        map[string]events.ObservedPod
}

func (w *fixture) randomHistory(seed uint64) *history {
	c := &history{
		fixture:  w,
		random:   rand.New(rand.NewPCG(seed, 7)),
		agents:   []*fakeAgent{w.agent(7), w.agent(8)},
		versions: map[int64]int{7: 100, 8: 5000},
	}
	c.deployments, c.pods = map[string]deploymentReport{}, map[string]events.ObservedPod{}
	c.agents[1].cluster = "cluster-8"
	return c
}

// seed returns a fixed seed per test, so that runs are reproducible.
func seed(t *testing.T) uint64 {
	t.Helper()
	h := fnv.New64a()
	_, err := h.Write([]byte(t.Name()))
	require.NoError(t, err)
	return h.Sum64()
}

func (c *history) create() {
	made, created, err := workspace.New(workspace.Creation{
		Name:      fmt.Sprintf("w%d", len(c.workspaces)),
		ProjectID: 4,
		AgentID:   7 + int64(c.random.IntN(2)),
		UserID:    9,
		Template:  "default",
		Spec:      workspace.Spec{Image: "ide:9"},
		Now:       start(),
	})
	require.NoError(c.t, err)
	c.tx(func(tx pgx.Tx) error { return c.insert(tx, made, created...) })
	c.workspaces = append(c.workspaces, made)
}

// run executes random steps while the consumers run with random batch sizes and restarts.
func (c *history) run(steps int) {
	c.t.Helper()
	for len(c.workspaces) < 3 {
		c.create()
	}
	for done := 0; done < steps; {
		stop := c.startConsumers([]int{0, 1, 3, 50}[c.random.IntN(4)])
		for range 10 + c.random.IntN(60) {
			c.step()
			done++
		}
		if c.random.IntN(3) == 0 {
			c.caughtUp()
		}
		stop()
	}
	c.ingestAll()
}

// settle publishes a final tick, so that no workspace is due. A rebuild copies the state of due workspaces.
func (c *history) settle() {
	c.t.Helper()
	for _, a := range c.agents {
		a.ticks()
	}
	c.ingestAll()
	var due int
	require.NoError(c.t, c.pool.QueryRow(c.t.Context(), `
		select count(*) from workspaces w join agents a on a.id = w.agent_id
		where w.reconsider_at <= a.ticked_at or a.considered_revision <> a.configuration_revision`).Scan(&due))
	require.Zero(c.t, due)
}

func (c *history) step() {
	c.t.Helper()
	ws := c.workspaces[c.random.IntN(len(c.workspaces))]
	a := c.agents[ws.AgentID-7]
	a.now = a.now.Add(time.Duration(c.random.IntN(90)) * time.Second)
	c.versions[a.id]++
	version := c.versions[a.id]
	s := running(ws, version)
	s.spec, s.available = c.random.IntN(2), c.random.IntN(2)
	switch c.random.IntN(26) {
	case 0:
		s.deleted = true
		c.reportsDeployment(a, s)
	case 1:
		s.version = max(1, s.version-1-c.random.IntN(40)) // late
		c.reportsDeployment(a, s)
	case 2:
		a.replicaSet(ws, version)
	case 3, 4, 5:
		c.pod(a, ws, version)
	case 6, 7, 8:
		a.ticks()
	case 9:
		a.applies(ws.ID, c.revision(ws.ID))
	case 10:
		a.fails(ws.ID, c.revision(ws.ID))
	case 11:
		c.resync(a, version)
	case 12:
		c.setRandomDesiredState(ws.ID)
	case 13:
		if c.get(ws.ID).DesiredState == workspace.DesiredTerminated {
			a.reports([]string{"terminating", "terminated"}[c.random.IntN(2)], ws.ID, c.last(ws.ID), map[string]any{})
		}
	case 14:
		c.publishInvalid(a, ws)
	case 15:
		if len(c.workspaces) < 9 {
			c.create()
		}
	case 16:
		c.orphan(a, version)
	case 17, 18:
		c.orphanStep(a)
	case 19:
		c.configure(a)
	case 20:
		if c.random.IntN(4) == 0 {
			// the cluster was recreated
			a.cluster, c.versions[a.id] = a.cluster+"x", 10
			c.resync(a, 10)
		}
	default:
		c.reportsDeployment(a, s)
	}
}

// reportsDeployment publishes a version. The same version always has the same content.
func (c *history) reportsDeployment(a *fakeAgent, s deploymentReport) {
	c.t.Helper()
	s.template = 1
	at := fmt.Sprint(a.cluster, "/", s.name, "/", s.version)
	if first, published := c.deployments[at]; published {
		s.spec, s.available = first.spec, first.available
	}
	c.deployments[at] = s
	a.reportsDeployment(s)
}

// revision returns a random revision for a dispatcher event.
func (c *history) revision(id uuid.UUID) int {
	revision := 1 + c.random.IntN(3)
	if c.lastRevision != nil {
		c.lastRevision[id] += revision / 3
		revision = c.lastRevision[id] + 1
	}
	return revision
}

// last returns the revision of a terminated event.
func (c *history) last(id uuid.UUID) int {
	revision := int(c.get(id).DesiredRevision)
	if c.lastRevision != nil {
		revision = max(revision, c.lastRevision[id]+1)
		c.lastRevision[id] = revision - 1
	}
	return revision
}

func (c *history) pod(a *fakeAgent, ws workspace.Workspace, version int) {
	a.pod(ws, fmt.Sprintf("%s-%d", ws.Name, c.random.IntN(3)), version-c.random.IntN(3), func(p *events.ObservedPod) {
		created := a.now
		p.Object.CreatedAt = &created
		switch c.random.IntN(4) {
		case 0:
			p.Object.Verb = events.VerbDeleted
		case 1:
			p.Conditions = []events.Condition{
				{Type: "PodScheduled", Status: "False", Reason: "Unschedulable", Message: "no node", LastTransitionTime: &created},
			}
		case 2:
			p.Object.DeletedAt = &created
		default:
			p.Containers = []events.ContainerState{
				{
					Name:   "c",
					State:  events.ContainerStatusWaiting,
					Reason: []string{"", "CrashLoopBackOff", "ErrImagePull"}[c.random.IntN(3)],
				},
			}
		}
		at := fmt.Sprint(a.cluster, "/", p.Object.Name, "/", p.Object.ResourceVersion)
		if first, published := c.pods[at]; published {
			p.Object.CreatedAt, p.Object.DeletedAt = first.Object.CreatedAt, first.Object.DeletedAt
			p.Conditions, p.Containers = first.Conditions, first.Containers
		}
		c.pods[at] = *p
	})
}

// resync publishes a complete or incomplete full resync. Its begin event may have a nonce with higher versions.
func (c *history) resync(a *fakeAgent, version int) {
	id, nonce := fmt.Sprintf("r%d", a.events), ""
	if c.random.IntN(4) == 0 {
		nonce = fmt.Sprintf("%s/deployment:%d", uuid.New(), version-10+c.random.IntN(20))
	}
	var members []workspace.Workspace
	for _, ws := range c.workspaces {
		if ws.AgentID == a.id && c.random.IntN(4) > 0 {
			members = append(members, ws)
		}
	}
	a.begins(id, nonce, len(members), version-5)
	report := func(a *fakeAgent) {
		for n, ws := range members {
			if n == 0 || c.random.IntN(12) > 0 {
				c.reportsDeployment(a, member(running(ws, max(1, version-5-c.random.IntN(5))), id))
			}
		}
	}
	if len(members) > 0 && c.random.IntN(2) > 0 {
		a.reportsPage(id, report)
	} else {
		report(a)
	}
	if c.random.IntN(8) > 0 {
		a.ends(id, len(members))
	}
}

func (c *history) setRandomDesiredState(id uuid.UUID) {
	to := []workspace.DesiredState{
		workspace.DesiredRunning, workspace.DesiredStopped,
		workspace.DesiredRestartRequested, workspace.DesiredTerminated,
	}[c.random.IntN(4)]
	c.change(id, func(was workspace.Workspace) (workspace.Workspace, []workspace.Event, error) {
		if was.DesiredState == workspace.DesiredTerminated {
			return was, nil, nil
		}
		return was.SetDesired(to, 9, start())
	})
}

// publishInvalid publishes a message that goes to DEAD.
func (c *history) publishInvalid(a *fakeAgent, ws workspace.Workspace) {
	other := c.agents[0]
	if a == other {
		other = c.agents[1]
	}
	switch c.random.IntN(4) {
	case 0:
		a.reports("applied", uuid.New(), 1, map[string]any{"objects": []any{}})
	case 1:
		other.fails(ws.ID, 1)
	case 2:
		_, err := c.js.Publish(c.t.Context(), cell.ObservedTick(a.id), []byte("nonsense"))
		require.NoError(c.t, err)
	default:
		c.fixture.agent(99).ticks()
	}
}

// orphan publishes a Deployment with the label of an unknown workspace.
func (c *history) orphan(a *fakeAgent, version int) {
	c.orphans++
	a.reportsDeployment(
		deploymentReport{
			name:      fmt.Sprintf("o%d", c.orphans),
			workspace: orphanID(c.orphans),
			version:   version,
			spec:      1,
			available: 1,
			revision:  "1",
			uid:       fmt.Sprintf("uid-o%d", c.orphans),
		},
	)
}

func orphanID(number int) uuid.UUID { return uuid.NewSHA1(uuid.NameSpaceOID, fmt.Append(nil, number)) }

// orphanStep runs a random step of an orphan: deletion request, dispatcher event, or deletion in the cluster.
func (c *history) orphanStep(a *fakeAgent) {
	if c.orphans == 0 {
		return
	}
	number := 1 + c.random.IntN(c.orphans)
	id, name := orphanID(number), fmt.Sprintf("o%d", number)
	switch c.random.IntN(4) {
	case 0:
		c.tx(func(tx pgx.Tx) error {
			before, err := c.ingestStores.In(tx).LockOrphan(c.t.Context(), a.id, fmt.Sprintf("ws-%d-%s", a.id, name), name)
			if fault.Is(err, errcode.NotFound) {
				return nil
			}
			if err != nil {
				return err
			}
			after, err := before.Delete(9, 1, nil)
			if err != nil {
				return err
			}
			return c.saveOrphan(tx, orphan.Update{Before: before, After: after, At: a.now})
		})
	case 1:
		a.fails(id, 2)
	case 2:
		a.reports("terminated", id, 2, map[string]any{})
	default:
		c.versions[a.id]++
		a.reportsDeployment(deploymentReport{
			name:      name,
			workspace: id,
			version:   c.versions[a.id],
			spec:      1,
			available: 1,
			revision:  "1",
			uid:       "uid-" + name,
			deleted:   true,
		})
	}
}

// configure sets random age policies and pod timeouts.
func (c *history) configure(a *fakeAgent) {
	c.exec(fmt.Sprintf(`
		update agents set configuration_revision = configuration_revision + 1,
			configuration = '{"stop_after_running_ms": %d, "unschedulable_patience_ms": %d}'
		where id = %d`, 3_600_000*(1+c.random.IntN(4)), 60_000*(1+c.random.IntN(10)), a.id))
}
