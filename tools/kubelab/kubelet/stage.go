package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"text/template"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/kwok/pkg/apis/internalversion"
	"sigs.k8s.io/kwok/pkg/utils/lifecycle"
)

// jqSeconds parses a Go duration.
const jqSeconds = `def seconds: [scan("([0-9.]+)(h|ms|m|s)") 
	| (.[0] | tonumber) * {"h": 3600, "m": 60, "s": 1, "ms": 0.001}[.[1]]] | add // 0; `

// jqFault is the pod's annotated fault.
const jqFault = `.metadata.annotations["` + FaultAnnotation + `"] // ""`

// jqDuration is the duration of the pod's fault as a string, or empty.
const jqDuration = `(.metadata.annotations["` + FaultDurationAnnotation + `"] //
	([.spec.containers[].image | capture(":(?<d>([0-9.]+(h|ms|m|s))+)$").d] | first))`

// jqNeedsStep selects the pods with a next step: those not ready, those of jobs, and
// those with a fault that was added later.
const jqNeedsStep = `(.metadata.deletionTimestamp == null)
	and (.status.phase == "Pending" or .status.phase == "Running")
	and ((any(.status.conditions[]?; .type == "Ready" and .status == "True") | not)
		or any(.metadata.ownerReferences[]?; .kind == "Job")
		or (` + jqFault + ` | IN("", "slow-start", "unschedulable", "stuck-terminating") | not))`

// jqStepDelay is the delay until the next step: the minimum over the containers. CrashLoopBackOff uses the delay in its
// message; image pulls back off with the pod's age.
const jqStepDelay = jqSeconds + `
	(` + jqDuration + ` // "10s" | seconds) as $hold
	| ((now - ((.status.startTime // (now | todate)) | fromdate)) / 2) as $pull
	| [(.status.initContainerStatuses // []) + (.status.containerStatuses // []) | .[]
		| if .state.waiting.reason == "CrashLoopBackOff" then
			(.state.waiting.message | capture("back-off (?<d>[0-9]+s)").d | seconds)
		elif .state.waiting.reason == "ImagePullBackOff" then ([[$pull, 2] | max, 30] | min)
		elif .state.waiting.reason == "ErrImagePull" or .state.waiting.reason == "RunContainerError" then 1
		elif .state.waiting.reason == "PodInitializing" then empty
		elif .state.waiting then $hold
		elif .state.terminated then (if .state.terminated.exitCode == 0 then empty else 0.2 end)
		elif .state.running and (.ready | not) then 0.5
		else 0 end]
	| (min // 0) | "\(.)s"`

// jqStuck selects deleted pods with the fault stuck-terminating.
const jqStuck = `((` + jqFault + `) == "stuck-terminating" or
	any(.spec.containers[]; .image | test("stuck-terminating[^/]*$")))`

// jqNeedsStatus selects the nodes that are not ready, and those with another kubelet port; %d is the port.
const jqNeedsStatus = `(any(.status.conditions[]?; .type == "Ready" and .status == "True") | not)
	or .status.daemonEndpoints.kubeletEndpoint.Port != %d`

// jqNoProcess selects the pods that do not run as processes.
const jqNoProcess = `(.metadata.annotations["` + AgentAnnotation + `"] == null) and `

// Stages returns the kwok stages of pods and nodes. The kubelets listen on port. With processes, pods with the
// annotation AgentAnnotation have no stages: package process runs them.
func Stages(port int32, processes bool) map[internalversion.StageResourceRef][]*internalversion.Stage {
	pod := internalversion.StageResourceRef{APIGroup: "v1", Kind: "Pod"}
	node := internalversion.StageResourceRef{APIGroup: "v1", Kind: "Node"}
	simulated := ""
	if processes {
		simulated = jqNoProcess
	}
	return map[internalversion.StageResourceRef][]*internalversion.Stage{
		pod: {
			stage("pod-step", pod, simulated+jqNeedsStep, jqStepDelay, statusStep("PodStatus")),
			stage("pod-delete", pod, simulated+`(.metadata.deletionTimestamp != null) and (`+jqStuck+` | not)`, "",
				internalversion.StageStep{Delete: true}),
			stage("pod-delete-late", pod,
				simulated+`(.metadata.deletionTimestamp != null) and `+jqStuck+` and (`+jqDuration+` != null)`,
				jqDuration, internalversion.StageStep{Delete: true}),
		},
		node: {
			stage("node-ready", node, fmt.Sprintf(jqNeedsStatus, port), "", statusStep("NodeStatus")),
		},
	}
}

// CheckStages compiles all stages and tries them on an empty node and pod.
//
// kwok compiles a stage with the first object, for nodes and pods concurrently, and the CEL library fills global caches
// without a lock. Call it once before the stages are used: afterwards the caches are only read.
func CheckStages(ctx context.Context) error {
	for ref, stages := range Stages(0, true) {
		compiled, err := lifecycle.NewLifecycle(stages)
		if err != nil {
			return fmt.Errorf("compile the stages of %s: %w", ref.Kind, err)
		}
		event := &lifecycle.Event{Data: &v1.Pod{}}
		if ref.Kind == "Node" {
			event.Data = &v1.Node{}
		}
		if _, err := compiled.Match(ctx, event); err != nil {
			return fmt.Errorf("try the stages of %s: %w", ref.Kind, err)
		}
	}
	return nil
}

func stage(
	name string, ref internalversion.StageResourceRef, selector, delay string, step internalversion.StageStep,
) *internalversion.Stage {
	s := &internalversion.Stage{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: internalversion.StageSpec{
			ResourceRef: ref,
			Selector: &internalversion.StageSelector{MatchExpressions: []internalversion.MatchExpression{{
				JQ: &internalversion.SelectorJQ{Key: selector, Operator: internalversion.SelectorOpIn, Values: []string{"true"}},
			}}},
			Steps: []internalversion.StageStep{step},
		},
	}
	if delay != "" {
		s.Spec.Delay = &internalversion.StageDelay{
			DurationMilliseconds: ptr.To[int64](0),
			DurationFrom:         &internalversion.ExpressionFrom{JQ: &internalversion.ExpressionJQ{Expression: delay}},
		}
	}
	return s
}

func statusStep(function string) internalversion.StageStep {
	return internalversion.StageStep{Patch: &internalversion.StagePatch{
		Subresource: "status",
		Root:        "status",
		Template:    "{{ " + function + " . }}",
		Type:        ptr.To(internalversion.StagePatchTypeStrategicMergePatch),
	}}
}

// functions returns the functions of the stages' templates.
func functions(port int32, now func() time.Time) template.FuncMap {
	return template.FuncMap{
		"PodStatus": func(object any) (string, error) {
			var pod v1.Pod
			if err := convert(object, &pod); err != nil {
				return "", err
			}
			return encode(NextPodStatus(&pod, hostAddress(pod.Spec.NodeName), now()))
		},
		"NodeStatus": func(object any) (string, error) {
			var node v1.Node
			if err := convert(object, &node); err != nil {
				return "", err
			}
			return encode(NodeStatus(&node, port, now()))
		},
	}
}

func convert(object, into any) error {
	content, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("encode an object: %w", err)
	}
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("decode an object: %w", err)
	}
	return nil
}

func encode(status any) (string, error) {
	content, err := json.Marshal(status)
	if err != nil {
		return "", fmt.Errorf("encode a status: %w", err)
	}
	return string(content), nil
}
