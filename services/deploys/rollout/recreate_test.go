package rollout_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A Deployment without desired pods that is rolled back has the condition of the rollout before, and its template may
// be unknown after an outage. Its old pods are gone, so a newer template would have a ReplicaSet already.
func TestRecreateWithoutPodsCompletesDespiteEarlierCondition(t *testing.T) {
	t.Parallel()
	d := newDeployment(t, 1)
	d.strategy = "Recreate"
	d.create(0, "web:1")
	d.run()
	mark := d.mark()
	d.stop()
	d.edit("web:2")
	d.run()
	d.edit("web:3")
	d.run()
	d.undo(2)
	d.run()
	require.Contains(t, d.progress.Message, d.sets[2].name, "the condition of the rollout before")
	d.start()
	d.wait(time.Minute)
	require.Equal(t, []string{"gap [2 3]", "started 3", "unknown 3", "started 4", "rolled_back 4", "completed 4"},
		d.since(mark))
}

// While its old pods terminate, a Deployment has the number and no pods of the ReplicaSet before its newest template.
func TestRecreateWithTerminatingPodsCompletesNoEarlierRollout(t *testing.T) {
	t.Parallel()
	d := newDeployment(t, 1)
	d.strategy = "Recreate"
	d.create(3, "web:1")
	d.run()
	d.stop()
	d.edit("web:2")
	for len(d.sets) < 2 || d.sets[1].ready == 0 {
		d.step()
	}
	d.scale(0)
	d.edit("web:3")
	mark := d.mark()
	d.start()
	d.lingering = true
	d.run()
	require.Equal(t, []string{"started 2"}, d.since(mark))
	require.Equal(t, 0, d.status.Total, "all pods terminate")
	d.lingering = false
	d.run()
	require.Equal(t, []string{"started 2", "gap [2]", "unknown 2", "started 3", "completed 3"}, d.since(mark))
}
