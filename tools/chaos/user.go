package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"connectrpc.com/connect"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/retry"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/history"
)

const (
	users = 4
	// workspacesPerUser is the quota of each user.
	workspacesPerUser = 4
	// settleTimeout is how long a user waits for a workspace before the next change.
	settleTimeout = 15 * time.Second
	// longestThought is the longest time between two changes of a user.
	longestThought = 300 * time.Millisecond
	// stepTimeout limits a step that takes seconds on an idle machine without faults.
	stepTimeout = 4 * time.Minute
	retryPause  = 100 * time.Millisecond

	numberVariable  = "NUMBER"
	faultAnnotation = "kubelab.lockstep.dev/fault"
)

// states are the names of the states that a workspace may end in.
var states = map[statev1.ActualState]events.ActualState{
	statev1.ActualState_ACTUAL_STATE_RUNNING:    events.ActualStateRunning,
	statev1.ActualState_ACTUAL_STATE_STOPPED:    events.ActualStateStopped,
	statev1.ActualState_ACTUAL_STATE_FAILED:     events.ActualStateFailed,
	statev1.ActualState_ACTUAL_STATE_TERMINATED: events.ActualStateTerminated,
}

// Images and how the cluster's simulated kubelets treat them.
const (
	goodImage      = "registry.example/ide:1"
	otherGoodImage = "registry.example/ide:2"
	missingImage   = "registry.example/missing:1"
	crashingImage  = "registry.example/crash-loop:1"
)

// user creates and changes workspaces at random from a seed, one change after another, and sometimes waits for the
// result. Nobody else changes its workspaces.
type user struct {
	kube    kubernetes.Interface
	apis    []*client.API // of the replicas of state; the first is asked
	name    string
	project int64
	agent   int64
	rng     *rand.Rand
	record  *recorder
	own     []*ownedWorkspace
	events  int // counter for unique values
}

// ownedWorkspace is a workspace as its user remembers it.
type ownedWorkspace struct {
	id, name, namespace string

	desired  statev1.DesiredState
	image    string
	number   string // value of the variable NUMBER
	port     int32  // of web
	secret   string // value of the secret variable TOKEN
	broken   bool   // its pod was made to crash
	restarts bool   // a restart was requested and may be in progress
}

func (w *ownedWorkspace) terminated() bool {
	return w.desired == statev1.DesiredState_DESIRED_STATE_TERMINATED
}

// run creates a workspace that stays and restarts it. Then it makes changes until the load ends, and leaves no pod
// broken.
func (u *user) run(ctx, load context.Context) error {
	if err := u.begin(ctx); err != nil {
		return fmt.Errorf("%s: %w", u.name, err)
	}
	for load.Err() == nil {
		if err := u.change(ctx); err != nil {
			return fmt.Errorf("%s: %w", u.name, err)
		}
		if retry.Sleep(load, upTo(u.rng, longestThought)) != nil {
			break
		}
	}
	for _, w := range u.own {
		if err := u.healPod(ctx, w); err != nil {
			return fmt.Errorf("%s: %w", u.name, err)
		}
	}
	return nil
}

// begin creates the first workspace and restarts it.
func (u *user) begin(ctx context.Context) error {
	if err := u.create(ctx); err != nil {
		return err
	}
	for _, do := range []func(context.Context, *ownedWorkspace) error{
		u.settle, u.desire(statev1.DesiredState_DESIRED_STATE_RESTART_REQUESTED), u.settle,
	} {
		if err := do(ctx, u.own[0]); err != nil {
			return err
		}
	}
	return nil
}

// act is a change and its weight.
type act struct {
	weight int
	do     func(ctx context.Context, w *ownedWorkspace) error
}

// change makes one change and the failures that go with it.
func (u *user) change(ctx context.Context) error {
	if u.rng.IntN(6) == 0 {
		return u.create(ctx)
	}
	w := u.own[u.rng.IntN(len(u.own))]
	acts := []act{
		{8, u.updateImage},
		{8, u.updateNumber},
		{6, u.updatePort},
		{6, u.updateSecret},
		{8, u.desire(statev1.DesiredState_DESIRED_STATE_STOPPED)},
		{8, u.desire(statev1.DesiredState_DESIRED_STATE_RUNNING)},
		{8, u.desire(statev1.DesiredState_DESIRED_STATE_RESTART_REQUESTED)},
	}
	if w != u.own[0] {
		acts = append(acts, act{2, u.desire(statev1.DesiredState_DESIRED_STATE_TERMINATED)})
	}
	total := 0
	for _, a := range acts {
		total += a.weight
	}
	pick := u.rng.IntN(total)
	at := slices.IndexFunc(acts, func(a act) bool {
		pick -= a.weight
		return pick < 0
	})
	if err := acts[at].do(ctx, w); err != nil {
		return err
	}
	switch u.rng.IntN(8) {
	case 0, 1:
		return u.settle(ctx, w)
	case 2:
		return u.breakPod(ctx, w)
	case 3:
		return u.healPod(ctx, w)
	default:
		return nil
	}
}

func (u *user) create(ctx context.Context) error {
	u.events++
	w := &ownedWorkspace{
		name:    fmt.Sprintf("%s-%d", u.name, u.events),
		desired: statev1.DesiredState_DESIRED_STATE_RUNNING,
		image:   goodImage,
		number:  fmt.Sprint(u.events),
		port:    8080,
		secret:  u.newSecret(),
	}
	request := &statev1.CreateWorkspaceRequest{
		Name:           w.name,
		ProjectId:      u.project,
		AgentId:        u.agent,
		IdempotencyKey: w.name,
		Overrides: &statev1.WorkspaceOverrides{
			Image:     w.image,
			Env:       map[string]string{numberVariable: w.number},
			SecretEnv: map[string]string{"TOKEN": w.secret},
			Ports:     []*statev1.Port{{Name: "web", Number: w.port}},
		},
	}
	made, lost, err := u.ask(ctx, func(ctx context.Context, api *client.API) (*statev1.Workspace, error) {
		response, err := api.Workspaces.CreateWorkspace(ctx, connect.NewRequest(request))
		if err != nil {
			return nil, err
		}
		return response.Msg.GetWorkspace(), nil
	})
	if fault.Is(err, errcode.QuotaExceeded) {
		call := history.Call{What: "create", Lost: lost, Refused: true}
		u.record.write(entry{Call: &Call{Call: call, User: u.name, OverQuota: true}})
		return nil
	}
	if err != nil {
		return fmt.Errorf("create %s: %w", w.name, err)
	}
	w.id, w.namespace = made.GetId(), made.GetNamespace()
	u.own = append(u.own, w)
	call := history.Call{Workspace: w.id, What: "create", Revision: int(made.GetDesiredRevision()), Lost: lost, Sure: true}
	u.record.write(entry{Call: &Call{Call: call, User: u.name, Created: true}})
	return nil
}

func (u *user) updateImage(ctx context.Context, w *ownedWorkspace) error {
	images := []string{
		goodImage,
		otherGoodImage,
		goodImage,
		otherGoodImage,
		missingImage,
		crashingImage,
	}
	image := images[u.rng.IntN(len(images))]
	return u.update(ctx, w, image != w.image, &statev1.WorkspaceOverrides{Image: image}, func() { w.image = image })
}

func (u *user) updateNumber(ctx context.Context, w *ownedWorkspace) error {
	u.events++
	number := fmt.Sprint(u.events)
	return u.update(ctx, w, true, &statev1.WorkspaceOverrides{Env: map[string]string{numberVariable: number}},
		func() { w.number = number })
}

func (u *user) updatePort(ctx context.Context, w *ownedWorkspace) error {
	u.events++
	port := int32(8080 + u.events)
	return u.update(ctx, w, true, &statev1.WorkspaceOverrides{Ports: []*statev1.Port{{Name: "web", Number: port}}},
		func() { w.port = port })
}

func (u *user) updateSecret(ctx context.Context, w *ownedWorkspace) error {
	secret := u.newSecret()
	return u.update(ctx, w, true, &statev1.WorkspaceOverrides{SecretEnv: map[string]string{"TOKEN": secret}},
		func() { w.secret = secret })
}

func (u *user) update(
	ctx context.Context, w *ownedWorkspace, sure bool, overrides *statev1.WorkspaceOverrides, accepted func(),
) error {
	answer, lost, err := u.ask(ctx, func(ctx context.Context, api *client.API) (*statev1.Workspace, error) {
		response, err := api.Workspaces.UpdateWorkspace(ctx,
			connect.NewRequest(&statev1.UpdateWorkspaceRequest{Workspace: w.reference(), Overrides: overrides}))
		if err != nil {
			return nil, err
		}
		return response.Msg.GetWorkspace(), nil
	})
	return u.recordCall(w, history.Call{What: "update", Lost: lost, Sure: sure}, answer, err, accepted)
}

// desire requests a state.
func (u *user) desire(state statev1.DesiredState) func(ctx context.Context, w *ownedWorkspace) error {
	return func(ctx context.Context, w *ownedWorkspace) error {
		answer, lost, err := u.ask(ctx, func(ctx context.Context, api *client.API) (*statev1.Workspace, error) {
			response, err := api.Workspaces.SetDesiredState(ctx,
				connect.NewRequest(&statev1.SetDesiredStateRequest{Workspace: w.reference(), DesiredState: state}))
			if err != nil {
				return nil, err
			}
			return response.Msg.GetWorkspace(), nil
		})
		restart := state == statev1.DesiredState_DESIRED_STATE_RESTART_REQUESTED
		// Whether a restarting workspace is desired Running again is unknown.
		call := history.Call{What: state.String(), Lost: lost, Sure: state != w.desired && !w.restarts, Repeats: restart}
		return u.recordCall(w, call, answer, err, func() {
			w.restarts = restart && (w.desired != statev1.DesiredState_DESIRED_STATE_STOPPED || lost > 0)
			if restart {
				state = statev1.DesiredState_DESIRED_STATE_RUNNING
			}
			w.desired = state
		})
	}
}

// recordCall records the outcome of a call. Only a terminated workspace may refuse changes.
func (u *user) recordCall(
	w *ownedWorkspace, call history.Call, answer *statev1.Workspace, err error, accepted func(),
) error {
	call.Workspace = w.id
	ended := false
	switch {
	case err == nil:
		call.Revision = int(answer.GetDesiredRevision())
		ended = !w.terminated()
		accepted()
		ended = ended && w.terminated()
	case fault.Is(err, errcode.WorkspaceTerminated) && w.terminated():
		call.Refused = true
	default:
		return fmt.Errorf("%s of %s: %w", call.What, w.name, err)
	}
	u.record.write(entry{Call: &Call{Call: call, User: u.name, Terminated: ended}})
	return nil
}

// ask repeats a call until it is answered, by one replica after the other, and counts the attempts without an answer.
func (u *user) ask(
	ctx context.Context, call func(ctx context.Context, api *client.API) (*statev1.Workspace, error),
) (*statev1.Workspace, int, error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	lost := 0
	var answer *statev1.Workspace
	err := retry.Policy{Min: retryPause, Max: retryPause}.Do(ctx, func() (err error) {
		if answer, err = call(ctx, u.apis[0]); err == nil || !isUnanswered(err) {
			return permanent(err)
		}
		lost++
		u.apis = append(u.apis[1:], u.apis[0])
		return err
	}, nil)
	return answer, lost, err
}

func permanent(err error) error {
	if err == nil {
		return nil
	}
	return retry.Permanent(err)
}

// isUnanswered reports whether it is unknown if the call took effect.
func isUnanswered(err error) bool {
	return fault.Is(err, errcode.Unavailable) || fault.Is(err, errcode.DeadlineExceeded)
}

// newSecret returns a value that must appear in no event.
func (u *user) newSecret() string {
	u.events++
	value := fmt.Sprintf("secret-of-%s-%d-%016x", u.name, u.events, u.rng.Uint64())
	u.record.write(entry{Hidden: value})
	return value
}

func (w *ownedWorkspace) reference() *statev1.WorkspaceReference {
	return &statev1.WorkspaceReference{Reference: &statev1.WorkspaceReference_Id{Id: w.id}}
}

// expects reports whether the workspace is as its user desires, as far as its image allows.
func (w *ownedWorkspace) expects(now *statev1.Workspace) bool {
	if now.GetAppliedRevision() != now.GetDesiredRevision() || now.GetDesiredState() != w.desired {
		return false
	}
	state := now.GetActualState()
	switch {
	case w.terminated():
		return state == statev1.ActualState_ACTUAL_STATE_TERMINATED
	case w.desired == statev1.DesiredState_DESIRED_STATE_STOPPED:
		return state == statev1.ActualState_ACTUAL_STATE_STOPPED
	case w.image == missingImage || w.image == crashingImage:
		return state == statev1.ActualState_ACTUAL_STATE_FAILED
	default:
		return state == statev1.ActualState_ACTUAL_STATE_RUNNING || w.broken
	}
}

// settle waits until the workspace is as desired or the user gives up.
func (u *user) settle(ctx context.Context, w *ownedWorkspace) error {
	waiting, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	_, err := u.awaitWorkspace(waiting, w)
	if err != nil && waiting.Err() == nil &&
		!fault.Is(err, errcode.DeadlineExceeded) { // which the server may notice first
		return fmt.Errorf("follow %s: %w", w.name, err)
	}
	if err == nil {
		w.restarts = false
	}
	return nil
}

// breakPod makes a pod of the workspace crash, if there is one.
func (u *user) breakPod(ctx context.Context, w *ownedWorkspace) error {
	w.broken = true
	return u.annotate(ctx, w, "crash-loop")
}

// healPod removes the faults of all pods of the workspace.
func (u *user) healPod(ctx context.Context, w *ownedWorkspace) error {
	w.broken = false
	return u.annotate(ctx, w, nil)
}

func (u *user) annotate(ctx context.Context, w *ownedWorkspace, value any) error {
	pods := u.kube.CoreV1().Pods(w.namespace)
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the pods of %s: %w", w.name, err)
	}
	patch, err := json.Marshal(
		map[string]any{"metadata": map[string]any{"annotations": map[string]any{faultAnnotation: value}}},
	)
	if err != nil {
		return fmt.Errorf("make a patch: %w", err)
	}
	for _, pod := range list.Items {
		if value != nil && (pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning) {
			continue
		}
		_, err := pods.Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("patch pod %s of %s: %w", pod.Name, w.name, err)
		}
	}
	return nil
}

// awaitWorkspace watches a workspace until it is as its user desires. It returns the last version that it saw.
func (u *user) awaitWorkspace(ctx context.Context, w *ownedWorkspace) (*statev1.Workspace, error) {
	var last *statev1.Workspace
	err := retry.Policy{Min: retryPause, Max: retryPause}.Do(ctx, func() error {
		stream, err := u.apis[0].Workspaces.WatchWorkspaces(ctx, connect.NewRequest(&statev1.WatchWorkspacesRequest{
			Filter: &statev1.WorkspaceFilter{Workspaces: []*statev1.WorkspaceReference{w.reference()}},
		}))
		if err == nil {
			defer stream.Close() //nolint:errcheck // the watch ends
			for stream.Receive() {
				if last = stream.Msg().GetWorkspace(); w.expects(last) {
					return nil
				}
			}
			err = stream.Err()
		}
		u.apis = append(u.apis[1:], u.apis[0])
		if err == nil || fault.Is(err, errcode.Unavailable) {
			return fault.New(errcode.Unavailable, "the watch has ended: %v", err)
		}
		return permanent(err)
	}, nil)
	return last, err
}

// finish waits until each workspace is as its user desires, and records what that is.
func (u *user) finish(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	for _, w := range u.own {
		now, err := u.awaitWorkspace(ctx, w)
		if err != nil {
			return fmt.Errorf("workspace %s does not become what %s wants, %+v, but is %v: %w", w.name, u.name, w, now, err)
		}
		d := Desired{
			Workspace: w.id, Namespace: w.namespace, Name: w.name, Terminated: w.terminated(),
			State: states[now.GetActualState()],
		}
		if !d.Terminated {
			d.Image, d.Number, d.Port = w.image, w.number, w.port
		}
		if w.desired == statev1.DesiredState_DESIRED_STATE_RUNNING {
			d.Replicas = 1
		}
		u.record.write(entry{Desired: &d})
	}
	return nil
}
