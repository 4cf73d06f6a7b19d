package process

import (
	"path"
	"slices"

	v1 "k8s.io/api/core/v1"

	"lockstep.internal/tools/kubelab/kubelet"
)

// agentProgram is the name of the workspace agent in containers.
const agentProgram = "workspace-agent"

// agentArguments returns the arguments with which the workspace agent runs in place of a container. It returns false
// for a container without the agent. The command that the agent would run beside itself is left out.
func agentArguments(c *v1.Container, init bool) ([]string, bool) {
	words := slices.Concat(c.Command, c.Args)
	switch {
	case len(c.Command) == 0 && !init, len(words) == 0: // the image's own program
		return nil, false
	case len(c.Command) > 0 && path.Base(words[0]) != agentProgram:
		return nil, false
	case len(c.Command) > 0:
		words = words[1:]
	}
	switch {
	case len(words) == 2 && words[0] == "install" && init:
		return words, true
	case len(words) == 1 && words[0] == "clone" && init:
		return words, true
	case len(words) > 0 && words[0] == "run" && !init:
		return words[:1], true
	default:
		return nil, false
	}
}

// runsProcess reports whether a container of a pod runs as a process.
func runsProcess(pod *v1.Pod, container string) bool {
	if pod.Annotations[kubelet.AgentAnnotation] == "" {
		return false
	}
	for i, c := range pod.Spec.InitContainers {
		if c.Name == container {
			_, is := agentArguments(&pod.Spec.InitContainers[i], true)
			return is
		}
	}
	for i, c := range pod.Spec.Containers {
		if c.Name == container {
			_, is := agentArguments(&pod.Spec.Containers[i], false)
			return is
		}
	}
	return false
}
