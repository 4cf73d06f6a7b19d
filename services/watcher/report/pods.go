package report

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockstep.internal/libs/podstate"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/object"
)

const (
	maxPods       = 3
	maxContainers = 10
	// maxPodMessage bounds each message of a pod, in bytes.
	maxPodMessage = 1024
)

// PodList is a list of pods of the newest revision of a workload.
type PodList struct {
	Workload *object.Workload
	// Revision is the name of the ReplicaSet or ControllerRevision; the template generation of a DaemonSet.
	Revision string
	// Version of the list.
	Version  string
	ListedAt time.Time
	Pods     []corev1.Pod
}

// WorkloadPods makes the event of a list of pods. It also returns a summary: equal for lists with the same failures,
// empty if no pod fails.
func (r Reporter) WorkloadPods(l PodList) (message Message, summary string, err error) {
	at := l.ListedAt.UTC().Truncate(time.Millisecond)
	pods, summary := failingPods(l.Pods, at)
	w := l.Workload
	data := events.ObservedWorkloadPods{
		Object: events.ObjectMeta{
			ClusterUID: r.ClusterUID, Namespace: w.Namespace, Name: w.Name, UID: string(w.UID),
			ResourceVersion: w.ResourceVersion, Verb: events.VerbUpserted, UpdateType: events.UpdateTypePartial, ObservedAt: at,
		},
		Kind: events.WorkloadKind(w.Kind), RevisionName: l.Revision, ListVersion: l.Version, Pods: pods,
	}
	content, err := json.Marshal(pods)
	if err != nil {
		return Message{}, "", fmt.Errorf("encode the pods of %s %s/%s: %w", w.Kind, w.Namespace, w.Name, err)
	}
	digest := sha256.Sum256(content)
	id := strings.Join([]string{
		r.ClusterUID, string(w.Kind), string(w.UID), "pods", l.Version, hex.EncodeToString(digest[:digestBytes]),
	}, "/")
	about := strings.Join([]string{string(w.Kind), w.Namespace, w.Name}, "/")
	subject := r.Cell.ObservedWorkload(r.Agent, string(w.Kind), w.Namespace, w.Name)
	message, err = r.message(events.TypeObservedWorkloadPods, subject, about, id, at, data)
	return message, summary, err
}

// failingPods returns the first pods that do not start, those that need a person before those that may find a node.
func failingPods(listed []corev1.Pod, at time.Time) (pods []events.WaitingPod, summary string) {
	type failing struct {
		pod     events.WaitingPod
		failure *podstate.Failure
	}
	var found []failing
	for i := range listed {
		pod := waitingPod(&listed[i])
		failure := podstate.Explain("its pods", podstate.Pod{
			Containers: pod.Containers, Conditions: pod.Conditions, CreatedAt: pod.CreatedAt, ObservedAt: at,
		})
		if failure != nil {
			found = append(found, failing{pod: pod, failure: failure})
		}
	}
	last := func(f failing) int {
		if f.failure.MayPass() {
			return 1
		}
		return 0
	}
	slices.SortFunc(found, func(a, b failing) int {
		return cmp.Or(last(a)-last(b), cmp.Compare(a.pod.Name, b.pod.Name))
	})
	found = found[:min(len(found), maxPods)]
	var reasons []string
	for _, f := range found {
		pods = append(pods, f.pod)
		reasons = append(reasons, f.failure.Reason+": "+f.failure.Message)
	}
	return pods, strings.Join(slices.Compact(reasons), "\n")
}

// waitingPod returns the fields that explain why a pod does not start.
func waitingPod(p *corev1.Pod) events.WaitingPod {
	pod := events.WaitingPod{Name: p.Name, CreatedAt: timeOf(p.CreationTimestamp)}
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodScheduled {
			pod.Conditions = appendCondition(pod.Conditions, events.Condition{
				Type: string(c.Type), Status: string(c.Status), Reason: c.Reason, Message: shortened(c.Message),
				LastTransitionTime: timeOf(c.LastTransitionTime),
			})
		}
	}
	containers := append(containerStates(p.Spec.InitContainers, p.Status.InitContainerStatuses, true),
		containerStates(p.Spec.Containers, p.Status.ContainerStatuses, false)...)
	for _, c := range containers {
		if !c.Ready && len(pod.Containers) < maxContainers {
			c.Message, c.LastMessage = shortened(c.Message), shortened(c.LastMessage)
			pod.Containers = append(pod.Containers, c)
		}
	}
	return pod
}

func shortened(message string) string {
	if len(message) <= maxPodMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxPodMessage], "")
}
