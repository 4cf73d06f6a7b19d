package admission_test

import (
	"strconv"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/event"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsauth/natsadmin"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/stack"
)

// A job of a project that admission does not know becomes a dead letter. Once the project exists, a retry decides about
// the job, once.
func TestRetriedDeadLetterIsDecidedOnce(t *testing.T) {
	t.Parallel()
	c := startWith(t, stack.Options{NATSPrincipals: []natsauth.StaticPrincipal{natsadmin.Principal()}})
	lockstep := fixture.NewCLI(t).With(client.Variable + "=" + c.ClientFile())
	const jobID = 4_000_001
	project := c.newProject("before") + 1 // the next one
	c.publishPreparing(project, jobID)
	var letters []fixture.DeadLetter
	require.Eventually(t, func() bool {
		letters = lockstep.DeadLetters()
		return len(letters) == 1
	}, soon, 100*time.Millisecond)
	require.Equal(t, natsauth.PrincipalAdmission, letters[0].Service)
	require.Contains(t, letters[0].Reason, "is not in the directory")
	require.Empty(t, c.decisions()[jobID])

	require.Equal(t, project, c.newProject("after"))
	c.awaitProject(project)
	lockstep.OK("dead", "retry", strconv.FormatUint(letters[0].Sequence, 10))
	require.Eventually(t, func() bool { return len(c.decisions()[jobID]) == 1 }, soon, 100*time.Millisecond)
	require.Equal(t, events.AdmissionOutcomeAdmitted, c.decisions()[jobID][0].Outcome)
	require.Empty(t, lockstep.DeadLetters())
}

func (c *cell) newProject(name string) int64 {
	c.t.Helper()
	made, err := c.state.Directory.CreateProject(c.t.Context(),
		connect.NewRequest(&statev1.CreateProjectRequest{GroupId: c.group, Name: name}))
	require.NoError(c.t, err)
	return made.Msg.GetProject().GetId()
}

// publishPreparing publishes that a job waits for admission, as the service runners does.
func (c *cell) publishPreparing(project, jobID int64) {
	c.t.Helper()
	key, err := nats.NkeyOptionFromSeed(natsauth.SeedFile(c.natsDir, natsauth.PrincipalRunners))
	require.NoError(c.t, err)
	conn, err := nats.Connect(c.natsURL, key,
		nats.CustomInboxPrefix(natsauth.InboxPrefix(natsauth.PrincipalRunners)))
	require.NoError(c.t, err)
	defer conn.Close()
	js, err := jetstream.New(conn)
	require.NoError(c.t, err)
	now := time.Now().UTC()
	subject := stack.Cell.Job(project, jobID, "preparing")
	made, err := event.New(event.Attributes{
		Type: events.TypeJobPreparing, Source: event.ServiceSource(string(stack.Cell), "runners"), Subject: "s",
		ID: subject, Time: now,
	}, events.JobPreparing{
		Job: events.Job{
			JobID: int(jobID), PipelineID: 1, ProjectID: int(project), OrganizationID: 1, Name: "test", Stage: "test",
			State: events.JobStatePreparing, Revision: 2, Attempt: 1, TimeoutS: 3600, CreatedAt: now, PreparingSince: &now,
		},
		Preparation: 1, UserID: 1, Ref: "main", Source: "api", Deadline: now.Add(time.Hour),
		Variables: map[string]string{"CI_PROJECT_ID": strconv.FormatInt(project, 10)},
	})
	require.NoError(c.t, err)
	m, err := event.Encode(made, subject)
	require.NoError(c.t, err)
	_, err = js.PublishMsg(c.t.Context(), m)
	require.NoError(c.t, err)
}
