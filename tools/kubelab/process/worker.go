package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"lockstep.internal/tools/kubelab/kubelet"
)

const (
	// portName is the name of the agent's port in pods.
	portName = "lockstep-ssh"
	// labGrace is the grace period when the lab ends.
	labGrace = time.Second
	// retryInterval is the delay after a request to the API server has failed, or something is missing.
	retryInterval = 500 * time.Millisecond
	// refreshInterval is the interval at which config maps and secrets are read.
	refreshInterval = 2 * time.Second
	readyInterval   = 20 * time.Millisecond
	// exitUnknown is the exit code of a process that ended with the lab before this one.
	exitUnknown = 255
)

// worker runs one pod.
type worker struct {
	runner *Runner
	pod    *v1.Pod
	folder podFolder
	// changed has a value when the status is to be reported.
	changed chan struct{}
	// ending is closed when the pod is being deleted.
	ending  chan struct{}
	endOnce sync.Once

	mu           sync.Mutex
	grace        time.Duration
	observations map[string]kubelet.Observation
	logs         map[string][2]*Log // of the current and the previous run
}

func newWorker(r *Runner, pod *v1.Pod) *worker {
	w := &worker{
		runner: r, pod: pod, changed: make(chan struct{}, 1), ending: make(chan struct{}), grace: labGrace,
		folder: podFolder{
			client: r.Client, pod: pod, path: filepath.Join(r.Folder, string(pod.UID)), claims: r.Claims,
		},
		observations: map[string]kubelet.Observation{}, logs: map[string][2]*Log{},
	}
	for _, s := range pod.Status.ContainerStatuses {
		if s.State.Running != nil { // by a lab that has ended
			w.observations[s.Name] = kubelet.Observation{Restarts: s.RestartCount + 1, Last: &kubelet.Exit{
				Code: exitUnknown, Started: s.State.Running.StartedAt.Time, Finished: time.Now(),
			}}
		}
	}
	return w
}

// end ends the processes, and then deletes the pod. Grace periods only get shorter.
func (w *worker) end(grace time.Duration) {
	w.mu.Lock()
	w.grace = grace
	w.mu.Unlock()
	w.endOnce.Do(func() { close(w.ending) })
}

func (w *worker) gracePeriod() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.grace
}

func (w *worker) log(container string, previous bool) *Log {
	w.mu.Lock()
	defer w.mu.Unlock()
	if previous {
		return w.logs[container][1]
	}
	return w.logs[container][0]
}

// run runs the pod until it is deleted, or lab ends.
func (w *worker) run(lab context.Context) {
	ctx, cancel := context.WithCancel(lab)
	defer cancel()
	reporting, stopReports := context.WithCancel(lab)
	var background sync.WaitGroup
	background.Go(func() {
		select {
		case <-w.ending:
		case <-ctx.Done():
		}
		cancel()
	})
	background.Go(func() { w.reportChanges(reporting) })
	w.runContainers(ctx)
	<-ctx.Done()
	killMarked(w.folder.path)
	stopReports()
	background.Wait()
	if err := os.RemoveAll(w.folder.path); err != nil {
		klog.ErrorS(err, "Remove the folder of a pod failed", "pod", klog.KObj(w.pod))
	}
	if lab.Err() == nil {
		w.retry(lab, "delete the pod", w.deletePod)
	}
}

func (w *worker) runContainers(ctx context.Context) {
	w.notify()
	for i := range w.pod.Spec.InitContainers {
		if !w.runInit(ctx, &w.pod.Spec.InitContainers[i]) {
			return
		}
	}
	var containers sync.WaitGroup
	containers.Go(func() { w.refresh(ctx) })
	for i := range w.pod.Spec.Containers {
		containers.Go(func() { w.keepRunning(ctx, &w.pod.Spec.Containers[i]) })
	}
	containers.Wait()
}

// runInit runs an init container until it succeeds. It returns false if ctx ends.
func (w *worker) runInit(ctx context.Context, c *v1.Container) bool {
	arguments, isProcess := agentArguments(c, true)
	if !isProcess {
		now := time.Now()
		w.observe(c, func(o *kubelet.Observation) { o.Ended = &kubelet.Exit{Started: now, Finished: now} })
		return ctx.Err() == nil
	}
	for ctx.Err() == nil {
		exit, err := w.runOnce(ctx, c, arguments)
		if err == nil && exit.Code == 0 {
			return ctx.Err() == nil
		}
		w.waitForRestart(ctx, c, err)
	}
	return false
}

func (w *worker) keepRunning(ctx context.Context, c *v1.Container) {
	arguments, isProcess := agentArguments(c, false)
	if !isProcess {
		w.observe(c, func(o *kubelet.Observation) { o.Running, o.Ready = time.Now(), true })
		return
	}
	for ctx.Err() == nil {
		_, err := w.runOnce(ctx, c, arguments)
		w.waitForRestart(ctx, c, err)
	}
}

// runOnce runs the agent for a container. The error is why it could not be started.
func (w *worker) runOnce(ctx context.Context, c *v1.Container, arguments []string) (kubelet.Exit, error) {
	root := w.folder.root(c.Name)
	temporary := filepath.Join(w.folder.path, "tmp")
	err := errors.Join(w.folder.write(ctx), makeFolder(temporary))
	if err == nil {
		err = w.folder.mount(c)
	}
	if err != nil {
		return kubelet.Exit{}, err
	}
	address := net.JoinHostPort(kubelet.ProcessAddress(w.pod), strconv.Itoa(agentPort(c)))
	environ, err := w.folder.environ(ctx, c, map[string]string{
		"PATH": os.Getenv("PATH"), "HOSTNAME": w.pod.Name, "TMPDIR": temporary,
	})
	if err != nil {
		return kubelet.Exit{}, err
	}
	environ = append(environ, "LOCKSTEP_WORKSPACE_ROOT="+root, "LOCKSTEP_WORKSPACE_LISTEN="+address,
		markVariable+"="+w.folder.path)
	output := newLog()
	w.mu.Lock()
	w.logs[c.Name] = [2]*Log{output, w.logs[c.Name][0]}
	w.mu.Unlock()
	alive, over := context.WithCancel(ctx)
	var probe sync.WaitGroup
	exit, err := command{
		program: w.runner.Program, arguments: arguments, environ: environ, root: root, output: output,
	}.run(ctx, w.gracePeriod, func() {
		w.observe(c, func(o *kubelet.Observation) {
			*o = kubelet.Observation{Running: time.Now(), Restarts: o.Restarts, Last: o.Last}
		})
		if arguments[0] == "run" {
			probe.Go(func() { w.awaitReady(alive, c, address) })
		}
	})
	over()
	probe.Wait()
	if err == nil {
		w.observe(c, func(o *kubelet.Observation) {
			*o = kubelet.Observation{Ended: &exit, Restarts: o.Restarts, Last: o.Last}
		})
	}
	return exit, err
}

// agentPort returns the port on which the agent listens.
func agentPort(c *v1.Container) int {
	for _, p := range c.Ports {
		if p.Name == portName {
			return int(p.ContainerPort)
		}
	}
	return 0 // it serves no SSH that others could reach
}

// awaitReady makes a container ready when its agent accepts connections, as a readiness probe would.
func (w *worker) awaitReady(ctx context.Context, c *v1.Container, address string) {
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	for ctx.Err() == nil {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err == nil {
			_ = conn.Close() // nothing was sent
			w.observe(c, func(o *kubelet.Observation) { o.Ready = true })
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// waitForRestart waits as a kubelet does before the container is started again. failed is why it could not be started.
func (w *worker) waitForRestart(ctx context.Context, c *v1.Container, failed error) {
	delay := retryInterval
	w.observe(c, func(o *kubelet.Observation) {
		if failed != nil {
			o.Running, o.Reason, o.Message = time.Time{}, "", failed.Error()
			if errors.Is(failed, errMissing) {
				o.Reason = kubelet.ConfigError
			}
			return
		}
		restarts := o.Restarts
		o.Last, o.Ended, o.Restarts = o.Ended, nil, restarts+1
		delay = kubelet.BackOff(restarts)
		o.Reason, o.Message = kubelet.WaitForRestart(w.pod, c.Name, delay)
	})
	select {
	case <-time.After(delay):
	case <-ctx.Done():
	}
}

// refresh writes the files of config maps and secrets when they change.
func (w *worker) refresh(ctx context.Context) {
	tick := time.NewTicker(refreshInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if err := w.folder.write(ctx); err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "Refresh the volumes of a pod failed; retrying", "pod", klog.KObj(w.pod))
		}
	}
}

func (w *worker) observe(c *v1.Container, change func(*kubelet.Observation)) {
	w.mu.Lock()
	o := w.observations[c.Name]
	change(&o)
	w.observations[c.Name] = o
	w.mu.Unlock()
	w.notify()
}

func (w *worker) notify() {
	select {
	case w.changed <- struct{}{}:
	default: // it will be reported
	}
}

// reportChanges writes the status of the pod whenever it has changed.
func (w *worker) reportChanges(ctx context.Context) {
	for {
		select {
		case <-w.changed:
			w.retry(ctx, "report the status", w.report)
		case <-ctx.Done():
			return
		}
	}
}

// report writes the status. What others have written to it stays, but for conditions and containers.
func (w *worker) report(ctx context.Context) error {
	pods := w.runner.Client.CoreV1().Pods(w.pod.Namespace)
	pod, err := pods.Get(ctx, w.pod.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get the pod: %w", err)
	}
	if pod.UID != w.pod.UID {
		return nil
	}
	status := kubelet.ObservedPodStatus(pod, time.Now(), func(container string) kubelet.Observation {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.observations[container]
	})
	if reflect.DeepEqual(status, pod.Status) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return fmt.Errorf("encode the status: %w", err)
	}
	_, err = pods.Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("patch the status: %w", err)
	}
	return nil
}

func (w *worker) deletePod(ctx context.Context) error {
	err := w.runner.Client.CoreV1().Pods(w.pod.Namespace).Delete(ctx, w.pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(w.pod.UID)),
	})
	if apierrors.IsConflict(err) {
		return nil // another pod has the name
	}
	if err != nil {
		return fmt.Errorf("delete the pod: %w", err)
	}
	return nil
}

// retry repeats a request until it succeeds, the pod is gone, or ctx ends.
func (w *worker) retry(ctx context.Context, what string, request func(context.Context) error) {
	for {
		err := request(ctx)
		if err == nil || apierrors.IsNotFound(err) || ctx.Err() != nil {
			return
		}
		klog.ErrorS(err, "A request of the kubelet failed; retrying", "request", what, "pod", klog.KObj(w.pod))
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
			return
		}
	}
}
