package history_test

import (
	"testing"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/tools/history"
)

func TestCalls(t *testing.T) {
	t.Parallel()
	const (
		running      = events.DesiredStateRunning
		stopped      = events.DesiredStateStopped
		restart      = events.DesiredStateRestartRequested
		user, system = events.DesiredStateCauseUser, events.DesiredStateCauseRestartCompleted
	)
	made := history.Call{Workspace: id, What: "create", Revision: 1, Sure: true}
	stop := history.Call{Workspace: id, What: "stop", Revision: 2, Sure: true}
	stoppedOnce := func(b *builder) { b.created().desires(2, running, stopped, user) }
	restartedOnce := func(b *builder) {
		b.created().desires(2, running, restart, user).desires(3, restart, running, system)
	}
	restartedTwice := func(b *builder) {
		restartedOnce(b)
		b.desires(4, running, restart, user).desires(5, restart, running, system)
	}
	for _, c := range []struct {
		name      string
		published func(b *builder)
		calls     []history.Call
		found     string
	}{
		{"sound", stoppedOnce, []history.Call{made, stop}, ""},
		{"response before a change of the system", restartedOnce, []history.Call{made, {
			Workspace: id, Revision: 2, Sure: true,
			Repeats: true,
		}}, ""},
		{"a repeated desired state changes nothing", stoppedOnce, []history.Call{made, stop, {
			Workspace: id, What: "stop",
			Revision: 2,
		}}, ""},
		{"refused", stoppedOnce, []history.Call{made, stop, {Workspace: id, What: "update", Refused: true, Sure: true}}, ""},
		{"two responses, one change", restartedOnce, []history.Call{made, {
			Workspace: id, Revision: 3, Sure: true,
			Repeats: true, Lost: 1,
		}}, ""},
		{"two responses, two changes", restartedTwice, []history.Call{made, {
			Workspace: id, Revision: 5, Sure: true,
			Repeats: true, Lost: 1,
		}}, ""},
		{"one response, two changes", restartedTwice, []history.Call{made, {
			Workspace: id, What: "restart", Revision: 5,
			Sure: true, Repeats: true,
		}}, "users changed it 2 times, not 1 to 1"},
		{
			"accepted and lost", func(b *builder) { b.created().desires(2, running, running, system) },
			[]history.Call{made, stop},
			"users changed it 0 times, not 1 to 1",
		},
		{
			"done twice although it repeats nothing", func(b *builder) { stoppedOnce(b); b.desires(3, stopped, stopped, user) },
			[]history.Call{made, {Workspace: id, What: "update", Revision: 3, Sure: true, Lost: 3}},
			"users changed it 2 times, not 1 to 1",
		},
		{
			"never published", func(b *builder) { b.created() },
			[]history.Call{made, {Workspace: id, What: "stop", Revision: 2}},
			"answered with revision 2, which is not published",
		},
		{
			"refused and done", stoppedOnce,
			[]history.Call{made, {Workspace: id, Refused: true}},
			"by a user without a call",
		},
		{"without a request", func(b *builder) { b.created() }, nil, "by a user without a call"},
		{
			"answers go back", stoppedOnce,
			[]history.Call{made, stop, {Workspace: id, What: "stop", Revision: 1}},
			"is answered with revision 1 after 2",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := &builder{t: t}
			c.published(b)
			requireOne(t, c.found, history.Calls(c.calls, b.all))
		})
	}
}

func TestConverged(t *testing.T) {
	t.Parallel()
	row := history.Row{
		ID:           id,
		Name:         "w",
		Namespace:    "ws-6-w",
		DesiredState: "running",
		Actual:       "running",
		Desired:      2,
		Applied:      2,
		Image:        "i",
	}
	deployment := history.Deployment{Namespace: "ws-6-w", Name: "w", Workspace: id, Revision: 2, Replicas: 1, Image: "i"}
	gone := history.Row{ID: other, Name: "g", DesiredState: "terminated", Actual: "terminated", Desired: 3, Applied: 3}
	for _, c := range []struct {
		name  string
		spoil func(rows []history.Row, there *history.Cluster)
		sent  int // revision in DESIRED
		found string
	}{
		{"sound", func([]history.Row, *history.Cluster) {}, 2, ""},
		{"DESIRED is behind", func([]history.Row, *history.Cluster) {}, 1, "is at revision 2, and DESIRED has 1"},
		{"not in DESIRED", func([]history.Row, *history.Cluster) {}, 0, "is not in DESIRED"},
		{
			"not applied", func(rows []history.Row, _ *history.Cluster) { rows[0].Applied = 1 }, 2,
			"applied revision is 1, want 2",
		},
		{
			"not restarted", func(rows []history.Row, _ *history.Cluster) { rows[0].DesiredState = "restart_requested" }, 2,
			"desired state restart_requested is not settled",
		},
		{
			"not terminated", func(rows []history.Row, _ *history.Cluster) { rows[1].Actual = "terminating" }, 2,
			"actual state is terminating, want terminated",
		},
		{
			"another revision", func(_ []history.Row, there *history.Cluster) { there.Deployments[0].Revision = 1 }, 2,
			"Revision:1",
		},
		{"another image", func(_ []history.Row, there *history.Cluster) { there.Deployments[0].Image = "j" }, 2, "Image:j"},
		{
			"runs and should not", func(rows []history.Row, _ *history.Cluster) { rows[0].DesiredState = "stopped" }, 2,
			"Replicas:1",
		},
		{"no Deployment", func(_ []history.Row, there *history.Cluster) { there.Deployments = nil }, 2, "Deployment is []"},
		{"a stray Deployment", func(_ []history.Row, there *history.Cluster) {
			there.Deployments = append(there.Deployments, history.Deployment{Namespace: "ws-6-g", Name: "g", Workspace: other})
		}, 2, "Deployment ws-6-g/g belongs to no existing workspace"},
		{
			"a stray namespace", func(_ []history.Row, there *history.Cluster) { there.Namespaces["ws-6-g"] = other }, 2,
			"namespace ws-6-g belongs to no existing workspace",
		},
		{
			"a stray volume", func(_ []history.Row, there *history.Cluster) { there.Volumes["ws-6-g/g"] = other }, 2,
			"volume ws-6-g/g belongs to no",
		},
		{
			"a stray inventory", func(_ []history.Row, there *history.Cluster) { there.Inventories["workspace-g"] = other }, 2,
			"inventory workspace-g belongs to no",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			rows := []history.Row{row, gone}
			there := history.Cluster{
				Deployments: []history.Deployment{deployment},
				Namespaces: map[string]string{
					"ws-6-w": id,
				},
				Volumes:     map[string]string{"ws-6-w/w-data": id},
				Inventories: map[string]string{"workspace-w": id},
			}
			c.spoil(rows, &there)
			b := &builder{t: t}
			if c.sent > 0 {
				b.desired(c.sent, 1)
			}
			requireOne(t, c.found, history.Converged(rows, b.all, there))
		})
	}
}

func TestMirrored(t *testing.T) {
	t.Parallel()
	pod := history.Object{Kind: "pod", Namespace: "n", Name: "p", UID: "u", Version: "7"}
	older := pod
	older.Version = "6"
	requireOne(t, "", history.Mirrored([]history.Object{pod}, []history.Object{pod}))
	requireOne(t, "is in the cluster and not in the database", history.Mirrored(nil, []history.Object{pod}))
	requireOne(t, "is in the database and not in the cluster", history.Mirrored([]history.Object{pod}, nil))
	requireOne(t, "Version:7} in the cluster and {Kind:pod Namespace:n Name:p UID:u Version:6} in the database",
		history.Mirrored([]history.Object{older}, []history.Object{pod}))
}

func TestKept(t *testing.T) {
	t.Parallel()
	volume := history.Volume{Namespace: "n", Name: "v", UID: "u", Workspace: id}
	another := volume
	another.UID = "x"
	requireOne(t, "", history.Kept([]history.Volume{volume, volume}))
	requireOne(t, "was created again: x after u", history.Kept([]history.Volume{volume, another}))
}
