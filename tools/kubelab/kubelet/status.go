package kubelet

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Version is the version of Kubernetes that the nodes report; that of the control plane.
const Version = "v1.37.2"

// NextPodStatus returns what a kubelet on the node with address hostIP reports next for pod: every container
// moved one step. If nothing changes it returns the current status.
func NextPodStatus(pod *v1.Pod, hostIP string, now time.Time) v1.PodStatus {
	return podStatus(pod, hostIP, now, container.next)
}

// podStatus returns the status of a pod whose containers have the statuses that next returns.
func podStatus(
	pod *v1.Pod, hostIP string, now time.Time, next func(container) v1.ContainerStatus,
) v1.PodStatus {
	pod = pod.DeepCopy()
	stamp := wholeSecond(now)
	if pod.Status.StartTime == nil {
		pod.Status.StartTime = &stamp
	}
	old := pod.Status
	status := v1.PodStatus{
		StartTime:          old.StartTime,
		ObservedGeneration: pod.Generation,
		HostIP:             hostIP,
		HostIPs:            []v1.HostIP{{IP: hostIP}},
	}
	podIP := addressOf(pod, hostIP)
	status.PodIP, status.PodIPs = podIP, []v1.PodIP{{IP: podIP}}

	initialized := true
	for i := range pod.Spec.InitContainers {
		c := newContainer(pod, &pod.Spec.InitContainers[i], true, now)
		if !initialized {
			status.InitContainerStatuses = append(status.InitContainerStatuses, c.waiting(reasonPodInitializing, ""))
			continue
		}
		s := next(c)
		initialized = s.Ready || (s.State.Terminated != nil && s.State.Terminated.ExitCode == 0)
		status.InitContainerStatuses = append(status.InitContainerStatuses, s)
	}
	for i := range pod.Spec.Containers {
		c := newContainer(pod, &pod.Spec.Containers[i], false, now)
		if !initialized {
			status.ContainerStatuses = append(status.ContainerStatuses, c.waiting(reasonPodInitializing, ""))
			continue
		}
		status.ContainerStatuses = append(status.ContainerStatuses, next(c))
	}
	status.Phase = phaseOf(pod, status, initialized)
	status.Conditions = conditionsOf(old.Conditions, status, initialized, stamp)
	return status
}

// wholeSecond truncates a time to seconds, as the API does.
func wholeSecond(t time.Time) metav1.Time { return metav1.NewTime(t.UTC().Truncate(time.Second)) }

func newContainer(pod *v1.Pod, spec *v1.Container, init bool, now time.Time) container {
	statuses := pod.Status.ContainerStatuses
	if init {
		statuses = pod.Status.InitContainerStatuses
	}
	c := container{pod: pod, spec: spec, init: init, at: now, now: wholeSecond(now)}
	for i := range statuses {
		if statuses[i].Name == spec.Name {
			c.old = statuses[i]
		}
	}
	return c
}

// phaseOf follows the kubelet: a pod is pending until each container has been
// started once, and over when none of them will be started again.
func phaseOf(pod *v1.Pod, status v1.PodStatus, initialized bool) v1.PodPhase {
	if !initialized {
		if pod.Spec.RestartPolicy == v1.RestartPolicyNever && anyFailed(status.InitContainerStatuses) {
			return v1.PodFailed
		}
		return v1.PodPending
	}
	over, failed := true, false
	for _, s := range status.ContainerStatuses {
		if s.State.Waiting != nil && s.LastTerminationState.Terminated == nil {
			return v1.PodPending
		}
		t := s.State.Terminated
		failed = failed || (t != nil && t.ExitCode != 0)
		stays := t != nil && (pod.Spec.RestartPolicy == v1.RestartPolicyNever ||
			(pod.Spec.RestartPolicy == v1.RestartPolicyOnFailure && t.ExitCode == 0))
		over = over && stays
	}
	switch {
	case !over:
		return v1.PodRunning
	case failed:
		return v1.PodFailed
	default:
		return v1.PodSucceeded
	}
}

func anyFailed(statuses []v1.ContainerStatus) bool {
	for _, s := range statuses {
		if s.State.Terminated != nil && s.State.Terminated.ExitCode != 0 {
			return true
		}
	}
	return false
}

func conditionsOf(old []v1.PodCondition, status v1.PodStatus, initialized bool, now metav1.Time) []v1.PodCondition {
	ready := v1.PodCondition{Type: v1.ContainersReady, Status: v1.ConditionTrue}
	var unready []string
	for _, s := range status.ContainerStatuses {
		if !s.Ready {
			unready = append(unready, s.Name)
		}
	}
	switch {
	case status.Phase == v1.PodSucceeded:
		ready.Status, ready.Reason = v1.ConditionFalse, "PodCompleted"
	case status.Phase == v1.PodFailed:
		ready.Status, ready.Reason = v1.ConditionFalse, "PodFailed"
	case len(unready) > 0:
		ready.Status, ready.Reason = v1.ConditionFalse, "ContainersNotReady"
		ready.Message = fmt.Sprintf("containers with unready status: [%s]", strings.Join(unready, " "))
	}
	podReady := ready
	podReady.Type = v1.PodReady

	init := v1.PodCondition{Type: v1.PodInitialized, Status: v1.ConditionTrue}
	if !initialized {
		var incomplete []string
		for _, s := range status.InitContainerStatuses {
			if s.State.Terminated == nil || s.State.Terminated.ExitCode != 0 {
				incomplete = append(incomplete, s.Name)
			}
		}
		init.Status, init.Reason = v1.ConditionFalse, "ContainersNotInitialized"
		init.Message = fmt.Sprintf("containers with incomplete status: [%s]", strings.Join(incomplete, " "))
	}
	sandbox := v1.PodCondition{Type: v1.PodReadyToStartContainers, Status: v1.ConditionTrue}

	conditions := []v1.PodCondition{sandbox, init, podReady, ready}
	for i := range conditions {
		conditions[i].ObservedGeneration = status.ObservedGeneration
		conditions[i].LastTransitionTime = now
		for _, o := range old {
			if o.Type == conditions[i].Type && o.Status == conditions[i].Status {
				conditions[i].LastTransitionTime = o.LastTransitionTime
			}
		}
	}
	return conditions
}

// addressOf gives a pod an address that follows from its uid, so that a
// restarted lab needs no memory of the addresses in use: 8 million of them,
// in 10.128.0.0/9.
func addressOf(pod *v1.Pod, hostIP string) string {
	if pod.Spec.HostNetwork {
		return hostIP
	}
	return addressIn(pod, 10)
}

// addressIn returns the address of a pod in the network 128.0.0.0/9 below first.
func addressIn(pod *v1.Pod, first byte) string {
	sum := sha256.Sum256([]byte(pod.UID))
	n := binary.BigEndian.Uint32(sum[:4])
	return netip.AddrFrom4([4]byte{first, 128 | byte(n>>16)&0x7f, byte(n >> 8), byte(n)}).String()
}

// NodeStatus describes a healthy node of the lab whose kubelet is reached on
// port of 127.0.0.1.
func NodeStatus(node *v1.Node, port int32, now time.Time) v1.NodeStatus {
	stamp := wholeSecond(now)
	conditions := []v1.NodeCondition{
		{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status"},
		{
			Type:    v1.NodeMemoryPressure,
			Status:  v1.ConditionFalse,
			Reason:  "KubeletHasSufficientMemory",
			Message: "kubelet has sufficient memory available",
		},
		{
			Type:    v1.NodeDiskPressure,
			Status:  v1.ConditionFalse,
			Reason:  "KubeletHasNoDiskPressure",
			Message: "kubelet has no disk pressure",
		},
		{
			Type:    v1.NodePIDPressure,
			Status:  v1.ConditionFalse,
			Reason:  "KubeletHasSufficientPID",
			Message: "kubelet has sufficient PID available",
		},
	}
	for i := range conditions {
		conditions[i].LastHeartbeatTime, conditions[i].LastTransitionTime = stamp, stamp
		for _, o := range node.Status.Conditions {
			if o.Type == conditions[i].Type && o.Status == conditions[i].Status {
				conditions[i].LastTransitionTime = o.LastTransitionTime
			}
		}
	}
	resources := v1.ResourceList{
		v1.ResourceCPU:              resource.MustParse("16"),
		v1.ResourceMemory:           resource.MustParse("64Gi"),
		v1.ResourceEphemeralStorage: resource.MustParse("500Gi"),
		v1.ResourcePods:             resource.MustParse("110"),
	}
	return v1.NodeStatus{
		Conditions:  conditions,
		Capacity:    resources,
		Allocatable: resources,
		Addresses: []v1.NodeAddress{
			{Type: v1.NodeInternalIP, Address: hostAddress(node.Name)},
			{Type: v1.NodeExternalIP, Address: "127.0.0.1"},
			{Type: v1.NodeHostName, Address: node.Name},
		},
		DaemonEndpoints: v1.NodeDaemonEndpoints{KubeletEndpoint: v1.DaemonEndpoint{Port: port}},
		NodeInfo: v1.NodeSystemInfo{
			OperatingSystem: "linux", Architecture: "amd64", KubeletVersion: Version,
			ContainerRuntimeVersion: "containerd://2.1.0", OSImage: "kubelab", KernelVersion: "6.12.0",
		},
	}
}

// hostAddress gives a node an address that follows from its name, in a network
// that is reserved for benchmarks.
func hostAddress(node string) string {
	sum := sha256.Sum256([]byte(node))
	return netip.AddrFrom4([4]byte{198, 18, sum[0], sum[1]}).String()
}
