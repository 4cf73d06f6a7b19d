package actualstate

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"lockstep.internal/schemas/gen/events"
)

// Reasons for which a container waits that do not pass without somebody's doing.
const (
	crashLoopBackOff           = "CrashLoopBackOff"
	imagePullBackOff           = "ImagePullBackOff"
	errImagePull               = "ErrImagePull"
	createContainerError       = "CreateContainerError"
	createContainerConfigError = "CreateContainerConfigError"
	runContainerError          = "RunContainerError"
)

// Exit codes that say why.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
	exitKilled        = 137
	exitSegmentation  = 139
	exitTerminated    = 143
)

// maxDetail bounds, in bytes, what is quoted of a message of the cluster.
const maxDetail = 300

// containerTrouble is why a pod's containers cannot start, the first one's word.
func containerTrouble(p events.ObservedPod) *trouble {
	for _, c := range p.Containers {
		if c.State != events.ContainerStatusWaiting {
			continue
		}
		switch c.Reason {
		case imagePullBackOff, errImagePull:
			// The kubelet alternates between the two; one reason for both keeps the workspace's history quiet.
			return &trouble{
				errImagePull,
				fmt.Sprintf("image %s cannot be pulled: %s", named(c.Image), pullFailure(c.Image, c.Message)),
			}
		case crashLoopBackOff:
			return &trouble{c.Reason, fmt.Sprintf("container %s keeps ending: %s", named(c.Name), exit(c.ExitCode))}
		case createContainerError, createContainerConfigError:
			return &trouble{
				c.Reason,
				fmt.Sprintf("container %s cannot be created: %s", named(c.Name), creationFailure(c.Message)),
			}
		case runContainerError:
			return &trouble{c.Reason, fmt.Sprintf("container %s cannot be started: %s", named(c.Name), detail(c.Message))}
		}
	}
	return nil
}

// pullFailure says why an image cannot be pulled; what the runtime says is a chain of errors that ends in the cause.
func pullFailure(image, message string) string {
	says := message
	if image != "" {
		// Its name may hold the words that are looked for.
		says = strings.ReplaceAll(message, image, "")
	}
	lower := strings.ToLower(says)
	for _, known := range []struct{ says, means string }{
		{"no such host", "its registry's host name does not exist"},
		{"x509", "its registry's certificate is not trusted"},
		{"toomanyrequests", "its registry limits how much may be pulled; it is tried again"},
		{"429 too many requests", "its registry limits how much may be pulled; it is tried again"},
		{"pull access denied", "not found, or its registry asks for credentials"},
		{"unauthorized", "its registry asks for credentials"},
		{"authentication required", "its registry asks for credentials"},
		{"denied", "its registry denies access"},
		{"forbidden", "its registry denies access"},
		{"manifest unknown", "not found"},
		{"not found", "not found"},
		{"notfound", "not found"},
		{"no match for platform", "it does not exist for the processors of this cluster"},
		{"connection refused", "its registry cannot be reached"},
		{"i/o timeout", "its registry cannot be reached"},
		{"deadline exceeded", "its registry does not answer in time"},
		{"no space left", "the node's disk is full"},
	} {
		if strings.Contains(lower, known.says) {
			return known.means
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
		return "its command ended without an error (exit code 0), but has to keep running"
	case exitNotExecutable:
		return "its command cannot be executed (exit code 126)"
	case exitNotFound:
		return "its command is not in the image (exit code 127)"
	case exitKilled:
		return "it was killed (exit code 137, OOMKilled in most cases): give it more memory"
	case exitSegmentation:
		return "its command crashed with a segmentation fault (exit code 139)"
	case exitTerminated:
		return "it was asked to end (exit code 143)"
	default:
		return fmt.Sprintf("its command failed with exit code %d", code)
	}
}

func unschedulable(message string) trouble {
	return trouble{podUnschedulable, "no node of the cluster can take the workspace: " + detail(message)}
}

func notEnding(p events.ObservedPod) trouble {
	return trouble{
		reasonPodNotEnding,
		fmt.Sprintf(
			"the workspace was asked to stop, but pod %s has not ended since %s; its volume may not unmount, or its node %s may be lost",
			named(p.Object.Name),
			p.Object.DeletedAt.UTC().Format(time.RFC3339),
			named(p.Node),
		),
	}
}

// deadlineExceeded is failed whatever the pods say, but they know best why.
func deadlineExceeded(in Input) Result {
	r := Result{State: Failed, Reason: progressDeadlineExceeded, Message: messageProgressDeadlineFailure}
	if *in.Deployment.SpecReplicas > 0 {
		// At this deadline every patience is over.
		in.Patience.Unschedulable = -1
	}
	pods := judge(in)
	r.Until = pods.until
	if pods.trouble != nil {
		r.Reason, r.Message = pods.trouble.reason, pods.trouble.message
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

func unrecognized(d *events.ObservedDeployment, progressing, availability string) string {
	if d.Paused {
		return "the workspace's Deployment is paused; somebody changed it in the cluster"
	}
	return fmt.Sprintf(
		"the workspace's Deployment is in no known state: Progressing %s, Available %s, %d wanted, %d available, %d unavailable",
		named(progressing),
		named(availability),
		*d.SpecReplicas,
		d.AvailableReplicas,
		d.UnavailableReplicas,
	)
}

// named keeps a sentence whole where the cluster gave no name.
func named(name string) string {
	if name == "" {
		return "(unnamed)"
	}
	return detail(name)
}

// detail is a message of the cluster, made one bounded line.
func detail(message string) string {
	message = strings.Join(strings.Fields(strings.ToValidUTF8(message, "\uFFFD")), " ")
	if message == "" {
		return "the cluster did not say why"
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
