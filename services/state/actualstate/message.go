package actualstate

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"lockstep.internal/schemas/gen/events"
)

// Waiting reasons that need a user's action.
const (
	crashLoopBackOff           = "CrashLoopBackOff"
	imagePullBackOff           = "ImagePullBackOff"
	errImagePull               = "ErrImagePull"
	createContainerError       = "CreateContainerError"
	createContainerConfigError = "CreateContainerConfigError"
	runContainerError          = "RunContainerError"
)

// Exit codes with a known cause.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
	exitKilled        = 137
	exitSegmentation  = 139
	exitTerminated    = 143
)

// maxDetail is the maximum length of a quoted cluster message, in bytes.
const maxDetail = 300

// containerFailure returns the failure of the first container that cannot start, or nil.
func containerFailure(p events.ObservedPod) *failure {
	for _, c := range p.Containers {
		if c.State != events.ContainerStatusWaiting {
			continue
		}
		switch c.Reason {
		case imagePullBackOff, errImagePull:
			// The kubelet alternates between the two. One reason for both avoids repeated state changes.
			return &failure{
				errImagePull,
				fmt.Sprintf("image %s cannot be pulled: %s", named(c.Image), pullFailure(c.Image, c.Message)),
			}
		case crashLoopBackOff:
			return &failure{c.Reason, fmt.Sprintf("container %s keeps exiting: %s", named(c.Name), exit(c.ExitCode))}
		case createContainerError, createContainerConfigError:
			return &failure{
				c.Reason,
				fmt.Sprintf("container %s cannot be created: %s", named(c.Name), creationFailure(c.Message)),
			}
		case runContainerError:
			return &failure{c.Reason, fmt.Sprintf("container %s cannot be started: %s", named(c.Name), detail(c.Message))}
		}
	}
	return nil
}

// pullFailure translates the container runtime's error to a short text. It searches the error chain for known
// phrases.
func pullFailure(image, message string) string {
	text := message
	if image != "" {
		// The image name may contain one of the phrases.
		text = strings.ReplaceAll(message, image, "")
	}
	lower := strings.ToLower(text)
	for _, known := range []struct{ phrase, text string }{
		{"no such host", "its registry's host name does not exist"},
		{"x509", "its registry's certificate is not trusted"},
		{"toomanyrequests", "its registry's pull rate limit is exceeded; Kubernetes retries"},
		{"429 too many requests", "its registry's pull rate limit is exceeded; Kubernetes retries"},
		{"pull access denied", "not found, or its registry asks for credentials"},
		{"unauthorized", "its registry asks for credentials"},
		{"authentication required", "its registry asks for credentials"},
		{"denied", "its registry denies access"},
		{"forbidden", "its registry denies access"},
		{"manifest unknown", "not found"},
		{"not found", "not found"},
		{"notfound", "not found"},
		{"no match for platform", "it has no variant for the CPU architecture of this cluster"},
		{"connection refused", "its registry cannot be reached"},
		{"i/o timeout", "its registry cannot be reached"},
		{"deadline exceeded", "its registry does not answer in time"},
		{"no space left", "the node's disk is full"},
	} {
		if strings.Contains(lower, known.phrase) {
			return known.text
		}
	}
	return detail(message)
}

func creationFailure(message string) string {
	if strings.Contains(message, "runAsNonRoot") {
		return "its image runs as root, which is not allowed; use an image with another user"
	}
	return detail(message)
}

func exit(code int) string {
	switch code {
	case 0:
		return "its command exited with code 0, but must keep running"
	case exitNotExecutable:
		return "its command cannot be executed (exit code 126)"
	case exitNotFound:
		return "its command is not in the image (exit code 127)"
	case exitKilled:
		return "it was killed (exit code 137, OOMKilled in most cases): give it more memory"
	case exitSegmentation:
		return "its command crashed with a segmentation fault (exit code 139)"
	case exitTerminated:
		return "it received SIGTERM (exit code 143)"
	default:
		return fmt.Sprintf("its command failed with exit code %d", code)
	}
}

func unschedulable(message string) failure {
	return failure{podUnschedulable, "no node of the cluster can take the workspace: " + detail(message)}
}

func stuckTerminating(p events.ObservedPod) failure {
	return failure{
		reasonPodNotEnding,
		fmt.Sprintf(
			"the workspace was asked to stop, but pod %s has been terminating since %s; its volume may not unmount, or its "+
				"node %s may be lost",
			named(p.Object.Name),
			p.Object.DeletedAt.UTC().Format(time.RFC3339),
			named(p.Node),
		),
	}
}

// deadlineExceeded returns Failed. The reason comes from the pods if they have one, else from the conditions.
func deadlineExceeded(in Input) Result {
	r := Result{State: Failed, Reason: progressDeadlineExceeded, Message: messageProgressDeadlineFailure}
	if *in.Deployment.SpecReplicas > 0 {
		// After the progress deadline the scheduling timeout is over, too.
		in.Timeouts.Unschedulable = -1
	}
	pods := evaluatePods(in)
	r.RecomputeAt = pods.recomputeAt
	if pods.failure != nil {
		r.Reason, r.Message = pods.failure.reason, pods.failure.message
		return r
	}
	if c := conditionOf(in.Deployment.Conditions, replicaFailureType); c != nil && c.Reason != "" {
		r.Reason, r.Message = c.Reason, "the cluster refuses to create the workspace's pod: "+detail(c.Message)
		if strings.Contains(c.Message, "exceeded quota") {
			r.Reason, r.Message = reasonQuotaExceeded, "a quota of the cluster does not allow this workspace: "+detail(c.Message)
		}
		return r
	}
	if c := conditionOf(in.Deployment.Conditions, progressingType); c.Message != "" {
		r.Message += ": " + detail(c.Message)
	}
	return r
}

func unrecognized(d *events.ObservedWorkload, progressing, availability string) string {
	if d.Paused {
		return "the workspace's Deployment is paused; somebody changed it in the cluster"
	}
	return fmt.Sprintf(
		"the workspace's Deployment is in no known state: Progressing %s, Available %s, %d desired, %d available, %d "+
			"unavailable",
		named(progressing),
		named(availability),
		*d.SpecReplicas,
		d.AvailableReplicas,
		d.UnavailableReplicas,
	)
}

// named returns the name, or "(unnamed)" if it is empty.
func named(name string) string {
	if name == "" {
		return "(unnamed)"
	}
	return detail(name)
}

// detail returns a cluster message as one line of at most maxDetail bytes.
func detail(message string) string {
	message = strings.Join(strings.Fields(strings.ToValidUTF8(message, "\uFFFD")), " ")
	if message == "" {
		return "the cluster gave no reason"
	}
	if len(message) <= maxDetail {
		return message
	}
	end := maxDetail
	for !utf8.RuneStart(message[end]) {
		end--
	}
	return message[:end] + "…"
}
