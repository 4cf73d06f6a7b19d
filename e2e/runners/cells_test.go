package runners_test

import (
	"context"
	"net/http"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/cellmap"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/tools/stack"
	"lockstep.internal/tools/testkit/runnerclient"
)

// startTwo starts two cells behind the router of the first one. Programs is that of the second cell.
func startTwo(t testing.TB, programs string) (one, two *cell) {
	t.Helper()
	one = start(t, stack.Options{Cell: "one", Router: true, MapCells: []topology.Cell{"two"}})
	two = start(t, stack.Options{
		Cell: "two", CellNumber: 1, Programs: programs, MapNATS: one.NATS().ClientURL(),
		MapSeedFile: natsauth.SeedFile(filepath.Join(one.Dir(), "nats"), natsauth.CellWriter("two").Name),
	})
	return one, two
}

// cells returns the writer of the cell map in the NATS of this cell.
func (c *cell) cells() cellmap.Writer {
	c.t.Helper()
	key, err := nats.NkeyOptionFromSeed(natsauth.SeedFile(filepath.Join(c.Dir(), "nats"), natsauth.PrincipalCells))
	require.NoError(c.t, err)
	conn, err := nats.Connect(
		c.NATS().ClientURL(), key, nats.CustomInboxPrefix(natsauth.InboxPrefix(natsauth.PrincipalCells)),
	)
	require.NoError(c.t, err)
	c.t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	require.NoError(c.t, err)
	return cellmap.Writer{JetStream: js}
}

// runnersOfAllTypes creates a runner of each type. Each takes the jobs with the tag of its type.
func (c *cell) runnersOfAllTypes() map[string]string {
	c.t.Helper()
	return map[string]string{
		"instance": c.create(&runnersv1.CreateRunnerRequest{
			Type:     runnersv1.RunnerType_RUNNER_TYPE_INSTANCE,
			Settings: &runnersv1.RunnerSettings{Tags: []string{"instance"}},
		}),
		"group": c.create(&runnersv1.CreateRunnerRequest{
			Type: runnersv1.RunnerType_RUNNER_TYPE_GROUP, GroupId: c.group,
			Settings: &runnersv1.RunnerSettings{Tags: []string{"group"}},
		}),
		"project": c.create(&runnersv1.CreateRunnerRequest{
			Type:     runnersv1.RunnerType_RUNNER_TYPE_PROJECT,
			Settings: &runnersv1.RunnerSettings{Tags: []string{"project"}, ProjectIds: []int64{c.project}},
		}),
	}
}

// tagged has a job for a runner of each type.
const tagged = `
instance: {tags: [instance], script: [echo]}
group: {tags: [group], script: [echo]}
project: {tags: [project], script: [echo]}
`

// given is a job that the runner with the system id got.
type given struct {
	system string
	job    int64
}

// TestTwoCellsBehindOneRouter has runners of two cells at one router. Each gets the jobs of its cell only.
func TestTwoCellsBehindOneRouter(t *testing.T) {
	t.Parallel()
	one, two := startTwo(t, "")
	tokens := map[string]map[string]string{"one": one.runnersOfAllTypes(), "two": two.runnersOfAllTypes()}
	// The runners stop with the subtest.
	t.Run("each runner gets the jobs of its cell", func(t *testing.T) {
		gotten := make(chan given, 20)
		want, got := map[given]bool{}, map[given]bool{}
		for name, c := range map[string]*cell{"one": one, "two": two} {
			for kind, token := range tokens[name] {
				run(t, one.RouterURL(), token, name+"-"+kind, runnerclient.Runs{
					Script: func(j *runnerclient.Job) runnerclient.Script {
						gotten <- given{name + "-" + kind, j.ID}
						return runnerclient.Script{Lines: []string{"in " + name}}
					},
				})
			}
			p := c.pipeline(c.project, tagged)
			for _, j := range p.GetJobs() {
				want[given{name + "-" + j.GetName(), j.GetId()}] = true
			}
			p = c.ended(p.GetId())
			require.Equal(t, runnersv1.PipelineState_PIPELINE_STATE_SUCCESS, p.GetState())
			for _, j := range p.GetJobs() {
				require.Contains(t, c.trace(j.GetId()), "in "+name)
			}
		}
		for range want {
			got[<-gotten] = true
		}
		require.Equal(t, want, got)
		require.Empty(t, gotten, "each job was given once")
	})

	// An organization that is assigned to the other cell: its requests go there, where its tokens are unknown.
	_, err := one.cells().PutOrganization(t.Context(), cellmap.Organization{ID: one.organization, Cell: "two"})
	require.NoError(t, err)
	moved := one.client(one.RouterURL(), tokens["one"]["group"], "moved")
	require.Eventually(t, func() bool {
		_, err = moved.Verify(t.Context())
		return err != nil
	}, soon, 10*time.Millisecond, "the router does not follow the map")
	require.Equal(t, http.StatusForbidden, runnerclient.StatusOf(err), err)
	_, direct := one.client(two.RunnersURL(), tokens["one"]["group"], "moved").Verify(t.Context())
	require.EqualError(t, err, direct.Error(), "the other cell answers")
	_, err = one.client(one.RunnersURL(), tokens["one"]["group"], "moved").Verify(t.Context())
	require.NoError(t, err, "its own cell knows the token")
	// A runner of the instance has no organization.
	_, err = one.client(one.RouterURL(), tokens["one"]["instance"], "moved").Verify(t.Context())
	require.NoError(t, err)

	_, err = one.cells().DeleteOrganization(t.Context(), one.organization)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := moved.Verify(t.Context())
		return err == nil
	}, soon, 10*time.Millisecond, "the router does not follow the map back")
}

// TestCellThatIsDownAffectsOnlyItsOwnTraffic kills the runners service of one of two cells.
func TestCellThatIsDownAffectsOnlyItsOwnTraffic(t *testing.T) {
	t.Parallel()
	one, two := startTwo(t, fixture.BuildReleaseServices(t))
	quick := func(*runnerclient.Job) runnerclient.Script { return runnerclient.Script{Lines: []string{"quick"}} }
	oneToken, twoToken := one.runner(untagged()), two.runner(untagged())
	run(t, one.RouterURL(), oneToken, "one", runnerclient.Runs{Script: quick})
	run(t, one.RouterURL(), twoToken, "two", runnerclient.Runs{Script: quick})
	const file = "work: {script: [echo], parallel: 3}\n"
	success := runnersv1.PipelineState_PIPELINE_STATE_SUCCESS
	require.Equal(t, success, two.ended(two.pipeline(two.project, file).GetId()).GetState())

	require.NoError(t, two.Kill(stack.Runners))
	caller := two.client(one.RouterURL(), twoToken, "caller")
	_, err := caller.RequestJob(t.Context())
	var refused *runnerclient.StatusError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, http.StatusServiceUnavailable, refused.Status, err)
	seconds, err := strconv.Atoi(refused.Header.Get("Retry-After"))
	require.NoError(t, err)
	require.Positive(t, seconds)
	require.Equal(t, success, one.ended(one.pipeline(one.project, file).GetId()).GetState(), "the other cell goes on")
	_, err = caller.Verify(t.Context())
	require.Equal(t, http.StatusServiceUnavailable, runnerclient.StatusOf(err), err)

	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	require.NoError(t, two.StartService(ctx, stack.Runners))
	require.Equal(t, success, two.ended(two.pipeline(two.project, file).GetId()).GetState(), "its runners are back")
}
