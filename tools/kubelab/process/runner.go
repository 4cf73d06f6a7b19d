package process

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"lockstep.internal/tools/kubelab/kubelet"
)

// Runner runs the pods with the annotation kubelet.AgentAnnotation.
type Runner struct {
	// Client reads the pods and what they refer to, and writes their status.
	Client kubernetes.Interface
	// Program is the workspace agent.
	Program string
	// Folder is for the folders of pods. It is empty at the start.
	Folder string
	// Claims is for the folders of persistent volumes.
	Claims string

	mu      sync.Mutex
	workers map[types.UID]*worker
	running sync.WaitGroup
}

// Run works until ctx ends, and returns after the last process has ended.
func (r *Runner) Run(ctx context.Context) error {
	if err := makeFolder(r.Claims); err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(r.Client, 0)
	pods, volumes := factory.Core().V1().Pods().Informer(), factory.Core().V1().PersistentVolumes().Informer()
	_, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { r.update(ctx, object) },
		UpdateFunc: func(_, object any) { r.update(ctx, object) },
		DeleteFunc: r.deleted,
	})
	if err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	_, err = volumes.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: r.volumeDeleted})
	if err != nil {
		return fmt.Errorf("watch volumes: %w", err)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	if ctx.Err() == nil {
		r.removeVolumesWithout(volumes.GetStore())
	}
	<-ctx.Done()
	factory.Shutdown() // no worker starts any more
	r.running.Wait()
	return nil
}

// HasProcess reports whether a container of a pod runs as a process, and its log; that of the process before with
// previous. The log is nil if no process was started.
func (r *Runner) HasProcess(pod *v1.Pod, container string, previous bool) (*Log, bool) {
	if r == nil || !runsProcess(pod, container) {
		return nil, false
	}
	r.mu.Lock()
	w := r.workers[pod.UID]
	r.mu.Unlock()
	if w == nil {
		return nil, true
	}
	return w.log(container, previous), true
}

// isOurs reports whether the runner runs a pod.
func isOurs(pod *v1.Pod) bool {
	return pod.Annotations[kubelet.AgentAnnotation] != "" && pod.Spec.NodeName != ""
}

func (r *Runner) update(ctx context.Context, object any) {
	pod, is := object.(*v1.Pod)
	if !is || !isOurs(pod) || (pod.DeletionTimestamp == nil && isOver(pod)) || ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.workers[pod.UID]
	if w == nil {
		w = newWorker(r, pod)
		if r.workers == nil {
			r.workers = map[types.UID]*worker{}
		}
		r.workers[pod.UID] = w
		r.running.Go(func() {
			w.run(ctx)
			r.mu.Lock()
			defer r.mu.Unlock()
			delete(r.workers, pod.UID)
		})
	}
	if pod.DeletionTimestamp != nil {
		grace := time.Duration(0)
		if seconds := pod.DeletionGracePeriodSeconds; seconds != nil {
			grace = time.Duration(*seconds) * time.Second
		}
		w.end(grace)
	}
}

func isOver(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

// deleted ends the processes of a pod that was deleted without a grace period.
func (r *Runner) deleted(object any) {
	if gone, is := object.(cache.DeletedFinalStateUnknown); is {
		object = gone.Obj
	}
	pod, is := object.(*v1.Pod)
	if !is {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.workers[pod.UID]; w != nil {
		w.end(0)
	}
}

func (r *Runner) volumeDeleted(object any) {
	if gone, is := object.(cache.DeletedFinalStateUnknown); is {
		object = gone.Obj
	}
	if volume, is := object.(*v1.PersistentVolume); is {
		r.removeVolume(volume.Name)
	}
}

// removeVolumesWithout removes the folders of volumes that were deleted while the lab did not run.
func (r *Runner) removeVolumesWithout(volumes cache.Store) {
	entries, err := os.ReadDir(r.Claims)
	if err != nil {
		klog.ErrorS(err, "List the folders of volumes failed")
	}
	for _, entry := range entries {
		if _, exists, err := volumes.GetByKey(entry.Name()); err == nil && !exists {
			r.removeVolume(entry.Name())
		}
	}
}

func (r *Runner) removeVolume(name string) {
	if err := os.RemoveAll(filepath.Join(r.Claims, name)); err != nil {
		klog.ErrorS(err, "Remove the folder of a volume failed", "volume", name)
	}
}

// KillIn kills all processes of the pods whose folders are in a folder: those of a lab that was killed.
func KillIn(folder string) {
	if filepath.IsAbs(folder) && folder != "/" {
		killMarked(folder)
	}
}
