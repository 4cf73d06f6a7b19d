package e2e_test

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

	"lockstep.internal/e2e/history"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
)

// workspacesPerUser is how many each creates.
const workspacesPerUser = 5

// settling is how long a user waits for a workspace before wishing something else. It gives up in silence: whether all converges is judged at the end.
const settling = 15 * time.Second

// user lives by a script that a seed makes: it creates workspaces and changes them, one change after the other, as fast as they are accepted, and now and then
// waits for what it asked for. Nobody else changes its workspaces.
type user struct {
	s      *system
	api    *client.API
	name   string
	dice   *rand.Rand
	limit  int // of workspaces
	own    []*owned
	calls  []history.Call
	events int // to make values that never come again
}

// owned is a workspace as its user remembers it.
type owned struct {
	id, name, namespace string

	desired  statev1.DesiredState
	image    string
	number   string // value of the variable NUMBER
	port     int32  // of web
	secret   string // value of the secret variable TOKEN
	broken   bool   // its pod was made to crash
	restarts bool   // a restart was asked for and may be under way
}

func (w *owned) terminated() bool {
	return w.desired == statev1.DesiredState_DESIRED_STATE_TERMINATED
}

// live makes so many changes, each of which the pace allows, and leaves no pod broken.
func (u *user) live(ctx context.Context, changes int, pace *pace) error {
	left := changes
	defer func() { pace.done(left) }() // of one that fails too: nobody waits for it
	for ; left > 0; left-- {
		if err := pace.begin(ctx); err != nil {
			return fmt.Errorf("%s: %w", u.name, err)
		}
		if err := u.change(ctx); err != nil {
			return fmt.Errorf("%s: %w", u.name, err)
		}
		pace.done(1)
	}
	for _, w := range u.own {
		if err := u.mend(ctx, w); err != nil {
			return fmt.Errorf("%s: %w", u.name, err)
		}
	}
	return nil
}

// act is a change that comes up as often as its weight says.
type act struct {
	weight int
	do     func(ctx context.Context, w *owned) error
}

// change makes one change, and whatever trouble goes with it.
func (u *user) change(ctx context.Context) error {
	if len(u.own) < u.limit && (len(u.own) == 0 || u.dice.IntN(3) == 0) {
		return u.create(ctx)
	}
	w := u.own[u.dice.IntN(len(u.own))]
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
	pick := u.dice.IntN(total)
	at := slices.IndexFunc(acts, func(a act) bool {
		pick -= a.weight
		return pick < 0
	})
	if err := acts[at].do(ctx, w); err != nil {
		return err
	}
	switch u.dice.IntN(8) {
	case 0, 1:
		return u.settle(ctx, w)
	case 2:
		return u.breakPod(ctx, w)
	case 3:
		return u.mend(ctx, w)
	default:
		return nil
	}
}

func (u *user) create(ctx context.Context) error {
	u.events++
	w := &owned{
		name: fmt.Sprintf("%s-%d", u.name, len(u.own)), desired: statev1.DesiredState_DESIRED_STATE_RUNNING, image: goodImage,
		number: fmt.Sprint(u.events), port: 8080, secret: u.s.secrets.make(),
	}
	request := &statev1.CreateWorkspaceRequest{
		Name: w.name, ProjectId: u.s.project, AgentId: u.s.agent, IdempotencyKey: w.name, Overrides: &statev1.WorkspaceOverrides{
			Image: w.image, Env: map[string]string{"NUMBER": w.number}, SecretEnv: map[string]string{"TOKEN": w.secret}, Ports: []*statev1.Port{{Name: "web", Number: w.port}},
		},
	}
	made, lost, err := insist(ctx, func(ctx context.Context) (*statev1.Workspace, error) {
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
	u.calls = append(u.calls, history.Call{Workspace: w.id, What: "create", Revision: int(made.GetDesiredRevision()), Lost: lost, Sure: true})
	return nil
}

func (u *user) updateImage(ctx context.Context, w *owned) error {
	images := []string{goodImage, otherGoodImage, goodImage, otherGoodImage, missingImage, crashingImage}
	image := images[u.dice.IntN(len(images))]
	return u.update(ctx, w, image != w.image, &statev1.WorkspaceOverrides{Image: image}, func() { w.image = image })
}

func (u *user) updateNumber(ctx context.Context, w *owned) error {
	u.events++
	number := fmt.Sprint(u.events)
	return u.update(ctx, w, true, &statev1.WorkspaceOverrides{Env: map[string]string{"NUMBER": number}}, func() { w.number = number })
}

func (u *user) updatePort(ctx context.Context, w *owned) error {
	u.events++
	port := int32(8080 + u.events)
	return u.update(ctx, w, true, &statev1.WorkspaceOverrides{Ports: []*statev1.Port{{Name: "web", Number: port}}}, func() { w.port = port })
}

func (u *user) updateSecret(ctx context.Context, w *owned) error {
	secret := u.s.secrets.make()
	return u.update(ctx, w, true, &statev1.WorkspaceOverrides{SecretEnv: map[string]string{"TOKEN": secret}}, func() { w.secret = secret })
}

func (u *user) update(ctx context.Context, w *owned, sure bool, overrides *statev1.WorkspaceOverrides, accepted func()) error {
	answer, lost, err := insist(ctx, func(ctx context.Context) (*statev1.Workspace, error) {
		response, err := u.api.Workspaces.UpdateWorkspace(ctx, connect.NewRequest(&statev1.UpdateWorkspaceRequest{Workspace: w.reference(), Overrides: overrides}))
		if err != nil {
			return nil, err
		}
		return response.Msg.GetWorkspace(), nil
	})
	return u.note(w, history.Call{What: "update", Lost: lost, Sure: sure}, answer, err, accepted)
}

// desire asks for a state.
func (u *user) desire(state statev1.DesiredState) func(ctx context.Context, w *owned) error {
	return func(ctx context.Context, w *owned) error {
		answer, lost, err := insist(ctx, func(ctx context.Context) (*statev1.Workspace, error) {
			response, err := u.api.Workspaces.SetDesiredState(ctx, connect.NewRequest(&statev1.SetDesiredStateRequest{Workspace: w.reference(), DesiredState: state}))
			if err != nil {
				return nil, err
			}
			return response.Msg.GetWorkspace(), nil
		})
		restart := state == statev1.DesiredState_DESIRED_STATE_RESTART_REQUESTED
		// Of a workspace that restarts nobody knows whether it is wanted running again already.
		call := history.Call{What: state.String(), Lost: lost, Sure: state != w.desired && !w.restarts, Repeats: restart}
		return u.note(w, call, answer, err, func() {
			w.restarts = restart && (w.desired != statev1.DesiredState_DESIRED_STATE_STOPPED || lost > 0)
			if restart {
				state = statev1.DesiredState_DESIRED_STATE_RUNNING
			}
			w.desired = state
		})
	}
}

// note takes down what came of a call. To be refused is right for what is terminated only.
func (u *user) note(w *owned, call history.Call, answer *statev1.Workspace, err error, accepted func()) error {
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

// insist asks until an answer comes, and counts the attempts that got none.
func insist(ctx context.Context, ask func(ctx context.Context) (*statev1.Workspace, error)) (*statev1.Workspace, int, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	lost := 0
	answer, err := backoff.Retry(ctx, func() (*statev1.Workspace, error) {
		answer, err := ask(ctx)
		if err == nil {
			return answer, nil
		}
		if fault.Is(err, errcode.Unavailable) {
			lost++
			return nil, err
		}
		return nil, backoff.Permanent(err)
	}, backoff.WithBackOff(backoff.NewConstantBackOff(retryPause)), backoff.WithMaxElapsedTime(0))
	return answer, lost, err
}

func (w *owned) reference() *statev1.WorkspaceReference {
	return &statev1.WorkspaceReference{Reference: &statev1.WorkspaceReference_Id{Id: w.id}}
}

// expects is that the workspace is as its user wants it, as far as its image lets it.
func (w *owned) expects(now *statev1.Workspace) bool {
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

// settle follows the workspace until it is as wanted, or the user has had enough.
func (u *user) settle(ctx context.Context, w *owned) error {
	waiting, cancel := context.WithTimeout(ctx, settling)
	defer cancel()
	_, err := u.s.await(waiting, u.api, w.reference(), w.expects)
	if err != nil && waiting.Err() == nil && !fault.Is(err, errcode.DeadlineExceeded) { // which the server may notice first
		return fmt.Errorf("follow %s: %w", w.name, err)
	}
	if err == nil {
		w.restarts = false
	}
	return nil
}

// breakPod makes a pod of the workspace crash, if there is one.
func (u *user) breakPod(ctx context.Context, w *owned) error {
	w.broken = true
	return u.annotate(ctx, w, "crash-loop")
}

// mend heals all pods of the workspace.
func (u *user) mend(ctx context.Context, w *owned) error {
	w.broken = false
	return u.annotate(ctx, w, nil)
}

func (u *user) annotate(ctx context.Context, w *owned, value any) error {
	pods := u.s.kube.CoreV1().Pods(w.namespace)
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the pods of %s: %w", w.name, err)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{faultAnnotation: value}}})
	if err != nil {
		return fmt.Errorf("make a patch: %w", err)
	}
	for _, pod := range list.Items {
		if value != nil && (pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning) {
			continue
		}
		if _, err := pods.Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("patch pod %s of %s: %w", pod.Name, w.name, err)
		}
	}
	return nil
}

// content is that each workspace becomes what the user wants, and has in its cluster what it was given last.
func (u *user) content(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, w := range u.own {
		now, err := u.s.await(ctx, u.api, w.reference(), w.expects)
		if err != nil {
			return fmt.Errorf("workspace %s does not become what %s wants, %+v, but is %v: %w", w.name, u.name, w, now, err)
		}
		if err := u.check(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

// errUnlike is that a workspace is not what its user asked for.
var errUnlike = errors.New("is not what its user asked for")

// check compares the cluster with what the user asked for last.
func (u *user) check(ctx context.Context, w *owned) error {
	if w.terminated() {
		return nil
	}
	deployment, err := u.s.kube.AppsV1().Deployments(w.namespace).Get(ctx, w.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("workspace %s: %w", w.name, err)
	}
	container := deployment.Spec.Template.Spec.Containers[0]
	at := slices.IndexFunc(container.Env, func(v corev1.EnvVar) bool { return v.Name == "NUMBER" })
	if at < 0 || container.Env[at].Value != w.number || container.Image != w.image || container.Ports[0].ContainerPort != w.port {
		return fmt.Errorf("workspace %s %w: %+v, not %+v", w.name, errUnlike, container, w)
	}
	service, err := u.s.kube.CoreV1().Services(w.namespace).Get(ctx, w.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("workspace %s: %w", w.name, err)
	}
	secret, err := u.s.kube.CoreV1().Secrets(w.namespace).Get(ctx, w.name+"-env", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("workspace %s: %w", w.name, err)
	}
	if service.Spec.Ports[0].Port != w.port || string(secret.Data["TOKEN"]) != w.secret {
		return fmt.Errorf("workspace %s %w: port %d, token %s, not %+v", w.name, errUnlike, service.Spec.Ports[0].Port, secret.Data["TOKEN"], w)
	}
	return nil
}
