package chaos_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"connectrpc.com/connect"
	"github.com/cenkalti/backoff/v5"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/history"
)

// workspacesPerUser is how many workspaces each user creates.
const workspacesPerUser = 5

// settleTimeout is how long a user waits for a workspace before the next change. Convergence is
// checked at the end.
const settleTimeout = 15 * time.Second

// user creates and changes workspaces at random from a seed, one change after another, and
// sometimes waits for the result. Nobody else changes its workspaces.
type user struct {
	s      *fixture.System
	api    *client.API
	name   string
	rng    *rand.Rand
	limit  int // of workspaces
	own    []*ownedWorkspace
	calls  []history.Call
	events int // counter for unique values
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

// run makes a number of changes, each when the schedule allows it, and leaves no pod broken.
func (u *user) run(ctx context.Context, changes int, sched *schedule) error {
	left := changes
	defer func() { sched.changed(left) }() // also after an error, so that the faults do not wait
	for ; left > 0; left-- {
		if err := sched.awaitTurn(ctx); err != nil {
			return fmt.Errorf("%s: %w", u.name, err)
		}
		if err := u.change(ctx); err != nil {
			return fmt.Errorf("%s: %w", u.name, err)
		}
		sched.changed(1)
	}
	for _, w := range u.own {
		if err := u.healPod(ctx, w); err != nil {
			return fmt.Errorf("%s: %w", u.name, err)
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
	if len(u.own) < u.limit && (len(u.own) == 0 || u.rng.IntN(3) == 0) {
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
		{2, u.desire(statev1.DesiredState_DESIRED_STATE_TERMINATED)},
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
		name:    fmt.Sprintf("%s-%d", u.name, len(u.own)),
		desired: statev1.DesiredState_DESIRED_STATE_RUNNING,
		image:   fixture.GoodImage,
		number:  fmt.Sprint(u.events),
		port:    8080,
		secret:  u.s.Secrets.New(),
	}
	request := &statev1.CreateWorkspaceRequest{
		Name:           w.name,
		ProjectId:      u.s.ProjectID,
		AgentId:        u.s.AgentID,
		IdempotencyKey: w.name,
		Overrides: &statev1.WorkspaceOverrides{
			Image:     w.image,
			Env:       map[string]string{"NUMBER": w.number},
			SecretEnv: map[string]string{"TOKEN": w.secret},
			Ports:     []*statev1.Port{{Name: "web", Number: w.port}},
		},
	}
	made, lost, err := retry(ctx, func(ctx context.Context) (*statev1.Workspace, error) {
		response, err := u.api.Workspaces.CreateWorkspace(ctx, connect.NewRequest(request))
		if err != nil {
			return nil, err
		}
		return response.Msg.GetWorkspace(), nil
	})
	if err != nil {
		return fmt.Errorf("create %s: %w", w.name, err)
	}
	w.id, w.namespace = made.GetId(), made.GetNamespace()
	u.own = append(u.own, w)
	u.calls = append(u.calls,
		history.Call{Workspace: w.id, What: "create", Revision: int(made.GetDesiredRevision()), Lost: lost, Sure: true})
	return nil
}

func (u *user) updateImage(ctx context.Context, w *ownedWorkspace) error {
	images := []string{
		fixture.GoodImage,
		fixture.OtherGoodImage,
		fixture.GoodImage,
		fixture.OtherGoodImage,
		fixture.MissingImage,
		fixture.CrashingImage,
	}
	image := images[u.rng.IntN(len(images))]
	return u.update(ctx, w, image != w.image, &statev1.WorkspaceOverrides{Image: image}, func() { w.image = image })
}

func (u *user) updateNumber(ctx context.Context, w *ownedWorkspace) error {
	u.events++
	number := fmt.Sprint(u.events)
	return u.update(ctx, w, true, &statev1.WorkspaceOverrides{Env: map[string]string{"NUMBER": number}},
		func() { w.number = number })
}

func (u *user) updatePort(ctx context.Context, w *ownedWorkspace) error {
	u.events++
	port := int32(8080 + u.events)
	return u.update(ctx, w, true, &statev1.WorkspaceOverrides{Ports: []*statev1.Port{{Name: "web", Number: port}}},
		func() { w.port = port })
}

func (u *user) updateSecret(ctx context.Context, w *ownedWorkspace) error {
	secret := u.s.Secrets.New()
	return u.update(ctx, w, true, &statev1.WorkspaceOverrides{SecretEnv: map[string]string{"TOKEN": secret}},
		func() { w.secret = secret })
}

func (u *user) update(
	ctx context.Context, w *ownedWorkspace, sure bool, overrides *statev1.WorkspaceOverrides, accepted func(),
) error {
	answer, lost, err := retry(ctx, func(ctx context.Context) (*statev1.Workspace, error) {
		response, err := u.api.Workspaces.UpdateWorkspace(ctx,
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
		answer, lost, err := retry(ctx, func(ctx context.Context) (*statev1.Workspace, error) {
			response, err := u.api.Workspaces.SetDesiredState(ctx,
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
	switch {
	case err == nil:
		call.Revision = int(answer.GetDesiredRevision())
		accepted()
	case fault.Is(err, errcode.WorkspaceTerminated) && w.terminated():
		call.Refused = true
	default:
		return fmt.Errorf("%s of %s: %w", call.What, w.name, err)
	}
	u.calls = append(u.calls, call)
	return nil
}

// retry repeats a call until it is answered and counts the attempts without an answer.
func retry(
	ctx context.Context, call func(ctx context.Context) (*statev1.Workspace, error),
) (*statev1.Workspace, int, error) {
	ctx, cancel := context.WithTimeout(ctx, fixture.Timeout)
	defer cancel()
	lost := 0
	answer, err := backoff.Retry(ctx, func() (*statev1.Workspace, error) {
		answer, err := call(ctx)
		if err == nil {
			return answer, nil
		}
		if fault.Is(err, errcode.Unavailable) {
			lost++
			return nil, err
		}
		return nil, backoff.Permanent(err)
	}, backoff.WithBackOff(backoff.NewConstantBackOff(fixture.RetryPause)), backoff.WithMaxElapsedTime(0))
	return answer, lost, err
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
	case w.image == fixture.MissingImage || w.image == fixture.CrashingImage:
		return state == statev1.ActualState_ACTUAL_STATE_FAILED
	default:
		return state == statev1.ActualState_ACTUAL_STATE_RUNNING || w.broken
	}
}

// settle waits until the workspace is as desired or the user gives up.
func (u *user) settle(ctx context.Context, w *ownedWorkspace) error {
	waiting, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	_, err := u.s.AwaitWorkspace(waiting, u.api, w.reference(), w.expects)
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
	pods := u.s.Kube.CoreV1().Pods(w.namespace)
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the pods of %s: %w", w.name, err)
	}
	patch, err := json.Marshal(
		map[string]any{"metadata": map[string]any{"annotations": map[string]any{fixture.FaultAnnotation: value}}},
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

// requireSettled checks that each workspace is as its user desires and that the cluster has its
// last settings.
func (u *user) requireSettled(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, fixture.Timeout)
	defer cancel()
	for _, w := range u.own {
		now, err := u.s.AwaitWorkspace(ctx, u.api, w.reference(), w.expects)
		if err != nil {
			return fmt.Errorf("workspace %s does not become what %s wants, %+v, but is %v: %w", w.name, u.name, w, now, err)
		}
		if err := u.check(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

// errNotAsDesired reports that a workspace is not as its user desires.
var errNotAsDesired = errors.New("is not what its user requested")

// check compares the cluster with the user's last settings.
func (u *user) check(ctx context.Context, w *ownedWorkspace) error {
	if w.terminated() {
		return nil
	}
	deployment, err := u.s.Kube.AppsV1().Deployments(w.namespace).Get(ctx, w.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("workspace %s: %w", w.name, err)
	}
	container := deployment.Spec.Template.Spec.Containers[0]
	at := slices.IndexFunc(container.Env, func(v corev1.EnvVar) bool { return v.Name == "NUMBER" })
	if at < 0 || container.Env[at].Value != w.number || container.Image != w.image ||
		container.Ports[0].ContainerPort != w.port {
		return fmt.Errorf("workspace %s %w: %+v, not %+v", w.name, errNotAsDesired, container, w)
	}
	service, err := u.s.Kube.CoreV1().Services(w.namespace).Get(ctx, w.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("workspace %s: %w", w.name, err)
	}
	secret, err := u.s.Kube.CoreV1().Secrets(w.namespace).Get(ctx, w.name+"-env", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("workspace %s: %w", w.name, err)
	}
	if service.Spec.Ports[0].Port != w.port || string(secret.Data["TOKEN"]) != w.secret {
		return fmt.Errorf("workspace %s %w: port %d, token %s, not %+v", w.name, errNotAsDesired, service.Spec.Ports[0].Port,
			secret.Data["TOKEN"], w)
	}
	return nil
}
