package report_test

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/delivery"
	"lockstep.internal/services/watcher/object"
	"lockstep.internal/services/watcher/report"
	"lockstep.internal/services/watcher/resync"
)

func reporter() report.Reporter {
	return report.Reporter{Cell: "local", Agent: 7, ClusterUID: "cluster"}
}

func deliveryOf(kind object.Kind, o metav1.Object) delivery.Delivery {
	return delivery.Delivery{Version: object.Version{
		Kind:            kind,
		ResourceVersion: o.GetResourceVersion(),
		Verb:            events.VerbUpserted,
		Object:          o,
		ObservedAt:      epoch(),
	}}
}

// observed returns the event of a delivery and its data, which must match its schema.
func observed[T any](t *testing.T, d delivery.Delivery, kind string) (T, report.Message) {
	t.Helper()
	message, err := reporter().Observed(d)
	require.NoError(t, err)
	require.Equal(t, kind, message.Event.Type())
	require.NoError(t, events.Validate(kind, message.Event.Data()))
	var data T
	require.NoError(t, json.Unmarshal(message.Event.Data(), &data))
	return data, message
}

func TestDeploymentEvent(t *testing.T) {
	t.Parallel()
	at := metav1.NewTime(epoch())
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         "ws-7-ide",
			Name:              "ide",
			UID:               "u",
			ResourceVersion:   "42",
			Generation:        3,
			CreationTimestamp: at,
			DeletionTimestamp: &at,
			Labels: map[string]string{
				"lockstep.dev/workspace": "w",
			},
			Annotations: map[string]string{"deployment.kubernetes.io/revision": "4"},
		},
		Spec: appsv1.DeploymentSpec{
			Replicas:                new(int32(1)),
			Paused:                  true,
			Strategy:                appsv1.DeploymentStrategy{Type: "Recreate"},
			MinReadySeconds:         5,
			ProgressDeadlineSeconds: new(int32(600)),
			Template:                corev1.PodTemplateSpec{Spec: corev1.PodSpec{NodeName: "node"}},
		},
		Status: appsv1.DeploymentStatus{
			ObservedGeneration:  2,
			Replicas:            5,
			UpdatedReplicas:     6,
			ReadyReplicas:       7,
			AvailableReplicas:   8,
			UnavailableReplicas: 9,
			TerminatingReplicas: new(int32(10)),
			Conditions: []appsv1.DeploymentCondition{
				{Type: "Progressing", Status: "True", Reason: "r", Message: "m", LastUpdateTime: at, LastTransitionTime: at},
			},
		},
	}
	got, message := observed[events.ObservedWorkload](t, deliveryOf(object.Deployment, d), events.TypeObservedWorkload)
	require.Equal(t, "lockstep.local.observed.7.deployment.ws-7-ide.ide", message.Subject)
	require.Equal(t, "/lockstep/local/agents/7/watcher", message.Event.Source())
	require.Equal(t, "deployment/ws-7-ide/ide", message.Event.Subject())
	require.Equal(t, epoch(), message.Event.Time())
	require.Equal(t, events.ObservedWorkload{
		Object: events.ObjectMeta{
			ClusterUID:      "cluster",
			Namespace:       "ws-7-ide",
			Name:            "ide",
			UID:             "u",
			ResourceVersion: "42",
			Verb:            events.VerbUpserted,
			UpdateType:      events.UpdateTypePartial,
			ObservedAt:      epoch(),
			WorkspaceID:     "w",
			CreatedAt:       new(epoch()),
			DeletedAt:       new(epoch()),
			Labels:          d.Labels,
			Annotations:     d.Annotations,
		},
		Kind:                    events.WorkloadKindDeployment,
		Generation:              3,
		ObservedGeneration:      2,
		SpecReplicas:            new(1),
		Paused:                  true,
		Strategy:                "Recreate",
		MinReadySeconds:         5,
		ProgressDeadlineSeconds: new(600),
		HasStatus:               true,
		Replicas:                5,
		UpdatedReplicas:         6,
		ReadyReplicas:           7,
		AvailableReplicas:       8,
		UnavailableReplicas:     9,
		TerminatingReplicas:     new(10),
		Revision:                4,
		Conditions: []events.Condition{
			{
				Type:               "Progressing",
				Status:             "True",
				Reason:             "r",
				Message:            "m",
				LastUpdateTime:     new(epoch()),
				LastTransitionTime: new(epoch()),
			},
		},
	}, got)

	without := deliveryOf(object.Deployment, deployment("a", "u", 1))
	bare, _ := observed[events.ObservedWorkload](t, without, events.TypeObservedWorkload)
	require.False(t, bare.HasStatus)
	require.Nil(t, bare.SpecReplicas)
	require.Zero(t, bare.AvailableReplicas)
}

func TestPodIsPublishedUnderItsDeployment(t *testing.T) {
	t.Parallel()
	started, finished := epoch().Add(-time.Hour), epoch()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       "n",
			Name:            "ide-abc-x",
			UID:             "u",
			ResourceVersion: "1",
			Labels:          map[string]string{"pod-template-hash": "abc"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "ide-abc", Controller: new(true)}},
		},
		Spec: corev1.PodSpec{
			NodeName:       "node",
			InitContainers: []corev1.Container{{Name: "fetch", Image: "f:1"}},
			Containers: []corev1.Container{
				{Name: "main", Image: "i:1"},
				{Name: "side", Image: "s:1"},
				{Name: "silent", Image: "q:1"},
			},
		},
		Status: corev1.PodStatus{
			Phase:      corev1.PodPending,
			Conditions: []corev1.PodCondition{{Type: "PodScheduled", Status: "False", Reason: "Unschedulable", Message: "m"}},
			InitContainerStatuses: []corev1.ContainerStatus{
				{
					Name: "fetch",
					State: corev1.ContainerState{
						Terminated: &corev1.ContainerStateTerminated{
							ExitCode: 3, Reason: "Error", Message: "bad",
							StartedAt: metav1.NewTime(started), FinishedAt: metav1.NewTime(finished),
						},
					},
				},
			},
			ContainerStatuses: []corev1.ContainerStatus{
				{Name: "side", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{
					StartedAt: metav1.NewTime(started),
				}}},
				{
					Name:         "main",
					RestartCount: 2,
					State: corev1.ContainerState{
						Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off"},
					},
					LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
						ExitCode: 137, Message: "no memory", StartedAt: metav1.NewTime(started), FinishedAt: metav1.NewTime(finished),
					}},
				},
			},
		},
	}
	got, message := observed[events.ObservedPod](t, deliveryOf(object.Pod, p), events.TypeObservedPod)
	require.Equal(t, "lockstep.local.observed.7.deployment.n.ide", message.Subject)
	require.Equal(t, "ide", got.Deployment)
	require.Equal(t, "ide-abc", got.Replicaset)
	require.Equal(t, "abc", got.PodTemplateHash)
	require.Equal(t, "node", got.Node)
	require.Equal(t, "Pending", got.Phase)
	require.Equal(t, []events.Condition{{Type: "PodScheduled", Status: "False", Reason: "Unschedulable", Message: "m"}},
		got.Conditions)
	require.Equal(t, []events.ContainerState{
		{
			Name:           "fetch",
			Image:          "f:1",
			Init:           true,
			State:          events.ContainerStatusTerminated,
			ExitCode:       3,
			Reason:         "Error",
			Message:        "bad",
			LastMessage:    "bad",
			LastStartedAt:  &started,
			LastFinishedAt: &finished,
		},
		{
			Name:           "main",
			Image:          "i:1",
			State:          events.ContainerStatusWaiting,
			Reason:         "CrashLoopBackOff",
			Message:        "back-off",
			LastMessage:    "no memory",
			ExitCode:       137,
			RestartCount:   2,
			LastStartedAt:  &started,
			LastFinishedAt: &finished,
		},
		{Name: "side", Image: "s:1", State: events.ContainerStatusRunning, Ready: true, StartedAt: &started},
		{Name: "silent", Image: "q:1", State: events.ContainerStatusWaiting},
	}, got.Containers)
}

func TestReplicaSetIsPublishedUnderItsDeployment(t *testing.T) {
	t.Parallel()
	labels := map[string]string{
		"pod-template-hash": "abc", object.LabelWorkspace: "w", object.LabelWorkspaceName: "ide",
	}
	for name, tc := range map[string]struct {
		owners []metav1.OwnerReference
		uid    string
	}{
		"by its controller": {
			owners: []metav1.OwnerReference{
				{APIVersion: "apps/v1", Kind: "Deployment", Name: "ide", UID: "d", Controller: new(true)},
			},
			uid: "d",
		},
		"by the label without a controller": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &metav1.PartialObjectMetadata{ObjectMeta: identified("ide-abc", "u", 1)}
			r.Labels, r.OwnerReferences = labels, tc.owners
			r.Annotations = map[string]string{
				"deployment.kubernetes.io/revision": "2", "deployment.kubernetes.io/revision-history": "1",
			}
			got, message := observed[events.ObservedWorkloadRevision](
				t, deliveryOf(object.ReplicaSet, r), events.TypeObservedWorkloadRevision)
			require.Equal(t, "lockstep.local.observed.7.deployment.ns.ide", message.Subject)
			require.Equal(t, "w", got.Object.WorkspaceID)
			require.Equal(t, labels, got.Object.Labels)
			require.Equal(t, r.Annotations, got.Object.Annotations)
			got.Object = events.ObjectMeta{}
			require.Equal(t, events.ObservedWorkloadRevision{
				Kind: events.WorkloadRevisionKindReplicaset, Workload: "ide", WorkloadUID: tc.uid,
				Revision: 2, RevisionHistory: []int{1}, TemplateHash: "abc",
			}, got)
		})
	}
}

func TestDeploymentOfAnObject(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		owner, hash, label, want string
	}{
		"by name and hash":              {owner: "ide-abc", hash: "abc", label: "other", want: "ide"},
		"hash within the name":          {owner: "a-b-abc", hash: "abc", want: "a-b"},
		"by the label without a hash":   {owner: "ide-abc", label: "ide", want: "ide"},
		"by the label where none fits":  {owner: "custom", hash: "abc", label: "ide", want: "ide"},
		"nothing before the hash":       {owner: "-abc", hash: "abc", label: "ide", want: "ide"},
		"by the label without an owner": {label: "ide", want: "ide"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{
					Namespace:       "n",
					Name:            "p",
					UID:             "u",
					ResourceVersion: "1",
					Labels:          map[string]string{},
				},
			}
			if tc.owner != "" {
				p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: tc.owner, Controller: new(true)}}
			}
			if tc.hash != "" {
				p.Labels["pod-template-hash"] = tc.hash
			}
			if tc.label != "" {
				p.Labels[object.LabelWorkspaceName] = tc.label
			}
			got, _ := observed[events.ObservedPod](t, deliveryOf(object.Pod, p), events.TypeObservedPod)
			require.Equal(t, tc.want, got.Deployment)
		})
	}
}

func TestEventIDDependsOnContentOnly(t *testing.T) {
	t.Parallel()
	base := deliveryOf(object.Deployment, deployment("a", "u", 5))
	id := func(change func(*delivery.Delivery)) string {
		d := base
		change(&d)
		message, err := reporter().Observed(d)
		require.NoError(t, err)
		return message.Event.ID()
	}
	want := id(func(*delivery.Delivery) {})
	require.Regexp(t, `^cluster/deployment/u/upserted/5/[0-9a-f]{16}$`, want)
	require.Equal(t, want, id(func(d *delivery.Delivery) {
		d.ObservedAt = d.ObservedAt.Add(time.Hour)
		d.FirstSeen = true
		d.Attempt = 9
	}))
	require.Equal(t, want+"/r", id(func(d *delivery.Delivery) { d.ResyncID = "r" }))
	require.NotEqual(t, want, id(func(d *delivery.Delivery) { d.Verb = events.VerbDeleted }))
	other := id(func(d *delivery.Delivery) { o := deployment("a", "u", 5); o.Spec.Paused = true; d.Object = o })
	require.NotEqual(t, want, other, "a restored cluster may give one version to two contents")
	require.Equal(t, want[:strings.LastIndex(want, "/")], other[:strings.LastIndex(other, "/")])
}

func TestResyncAndTickEvents(t *testing.T) {
	t.Parallel()
	resync := resync.Resync{
		ID: "r", Cause: events.ResyncCauseRequested, Nonce: "n", Count: 3,
		Versions: map[object.Kind]string{object.Deployment: "1", object.ReplicaSet: "2", object.Pod: "3"},
	}
	for kind, build := range map[string]func() (report.Message, error){
		events.TypeObservedResyncBegun: func() (report.Message, error) { return reporter().ResyncBegun(resync, epoch()) },
		events.TypeObservedResyncEnded: func() (report.Message, error) { return reporter().ResyncEnded(resync, epoch()) },
		events.TypeObservedTick:        func() (report.Message, error) { return reporter().Tick(epoch()) },
	} {
		message, err := build()
		require.NoError(t, err)
		require.Equal(t, kind, message.Event.Type())
		require.NoError(t, events.Validate(kind, message.Event.Data()))
		again, err := build()
		require.NoError(t, err)
		require.Equal(t, message.Event.ID(), again.Event.ID())
	}
	message, err := reporter().ResyncBegun(resync, epoch())
	require.NoError(t, err)
	require.Equal(t, "lockstep.local.observed.7.resync", message.Subject)
	var data events.ObservedResyncBegun
	require.NoError(t, json.Unmarshal(message.Event.Data(), &data))
	require.Equal(t, events.ObservedResyncBegun{
		ResyncID:   "r",
		ClusterUID: "cluster",
		Cause:      events.ResyncCauseRequested,
		Nonce:      "n",
		Count:      3,
		ObservedAt: epoch(),
		ListVersions: []events.ListVersion{
			{Kind: "deployment", ResourceVersion: "1"},
			{Kind: "replicaset", ResourceVersion: "2"},
			{Kind: "pod", ResourceVersion: "3"},
		},
	}, data)
}

// requireMember requires that a member in a message of several has the type and the data of its event.
func requireMember(t *testing.T, d delivery.Delivery, event report.Message) {
	t.Helper()
	message, err := reporter().Members([]delivery.Delivery{d, d}, 3, epoch())
	require.NoError(t, err)
	require.Equal(t, "lockstep.local.observed.7.members", message.Subject)
	require.Equal(t, events.TypeObservedMembers, message.Event.Type())
	require.Equal(t, "cluster/resync/"+d.ResyncID+"/members/3", message.Event.ID())
	var data events.ObservedMembers
	require.NoError(t, json.Unmarshal(message.Event.Data(), &data))
	require.Len(t, data.Members, 2)
	for _, m := range data.Members {
		require.Equal(t, event.Event.Type(), m.Type)
		require.JSONEq(t, string(event.Event.Data()), string(m.Data))
	}
	if d.ResyncID != "" {
		require.NoError(t, events.Validate(events.TypeObservedMembers, message.Event.Data()))
	}
}

func TestMembersHaveTheDataOfTheirEvents(t *testing.T) {
	t.Parallel()
	d := deliveryOf(object.Deployment, deployment("web", "w", 5))
	d.ResyncID = "r"
	message, err := reporter().Observed(d)
	require.NoError(t, err)
	requireMember(t, d, message)
}

// Whatever a cluster contains, the event matches its schema and is on a subject of the agent.
func FuzzWorkspaceEventsMatchTheirSchema(f *testing.F) {
	f.Add("ns", "name", "abc", "ide-abc", "message", int32(1), uint64(7))
	f.Add("n.s", "*.>", "", "-", "\xff\x00", int32(-1), uint64(1))
	f.Fuzz(func(t *testing.T, namespace, name, hash, owner, text string, number int32, version uint64) {
		if name == "" || version == 0 {
			return
		}
		meta := metav1.ObjectMeta{
			Namespace:       namespace,
			Name:            name,
			UID:             types.UID("u"),
			ResourceVersion: strconv.FormatUint(version, 10),
			Labels: map[string]string{
				"pod-template-hash":       hash,
				object.LabelWorkspaceName: "ide",
				object.LabelWorkspace:     text,
			},
			Annotations:     map[string]string{"deployment.kubernetes.io/revision": text},
			OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: owner, Controller: new(true)}},
		}
		pod := &corev1.Pod{
			ObjectMeta: meta,
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: text}}},
			Status: corev1.PodStatus{
				Phase:      corev1.PodPhase(text),
				Conditions: []corev1.PodCondition{{Message: text}},
				ContainerStatuses: []corev1.ContainerStatus{
					{
						Name:         text,
						RestartCount: number,
						State: corev1.ContainerState{
							Terminated: &corev1.ContainerStateTerminated{ExitCode: number, Message: text},
						},
					},
				},
			},
		}
		deployment := &appsv1.Deployment{
			ObjectMeta: meta,
			Spec:       appsv1.DeploymentSpec{Replicas: &number},
			Status:     appsv1.DeploymentStatus{Replicas: number},
		}
		for kind, o := range map[object.Kind]metav1.Object{
			object.Pod:        pod,
			object.Deployment: deployment,
			object.ReplicaSet: &metav1.PartialObjectMetadata{ObjectMeta: meta},
		} {
			d := deliveryOf(kind, o)
			message, err := reporter().Observed(d)
			if err != nil {
				require.ErrorContains(t, err, "event")
				continue
			}
			require.NoError(t, events.Validate(message.Event.Type(), message.Event.Data()), "%s", message.Event.Data())
			require.Equal(t, int64(7), agentOf(t, message.Subject))
			again, err := reporter().Observed(d)
			require.NoError(t, err)
			require.Equal(t, message.Event.String(), again.Event.String())
			d.Object, err = object.NewEncoder().Encode(o)
			require.NoError(t, err)
			encoded, err := reporter().Observed(d)
			require.NoError(t, err)
			require.Equal(t, message.Event.String(), encoded.Event.String(), "trimming and encoding change no event")
			requireMember(t, d, message)
		}
	})
}
