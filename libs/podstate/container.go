package podstate

import (
	"fmt"
	"strings"
	"time"

	"lockstep.internal/libs/workspaceagent"
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
	exitNotStarted    = 128
	exitKilled        = 137
	exitSegmentation  = 139
	exitTerminated    = 143
)

const (
	// restartsOfLoop is the number of restarts from which on a container keeps exiting: the kubelet waits before it
	// starts it for the second time.
	restartsOfLoop = 2
	// stableRun is how long a container must run until the kubelet forgets its earlier exits.
	stableRun = 10 * time.Minute
)

// ofContainers returns the failure of the first container that cannot start, or nil. One that keeps exiting fails while
// it is started again, too, so that a crash loop is one failure.
func ofContainers(p Pod) *Failure {
	for i := range p.Containers {
		c := &p.Containers[i]
		if f := ofClone(c); f != nil {
			return f
		}
		if c.State == events.ContainerStatusWaiting {
			if f := ofWaiting(c); f != nil {
				return f
			}
		} else if !c.Ready && isLoop(c, p.ObservedAt) {
			return keepsExiting(c)
		}
	}
	return nil
}

// ofClone returns the failure of the init container that clones the projects of a workspace, from its first exit on:
// its message is for people, and the next attempt fails as well until somebody acts.
func ofClone(c *events.ContainerState) *Failure {
	if !c.Init || c.Name != workspaceagent.CloneContainer || c.Ready || c.ExitCode == 0 {
		return nil
	}
	message := c.LastMessage
	if message == "" {
		message = exit(c.ExitCode)
	}
	return &Failure{Reason: CloneFailed, Message: "projects were not cloned: " + Detail(message)}
}

// isLoop reports whether a container that does not wait keeps exiting: it was restarted more than once, and neither its
// last run nor the present one is stable. Without times, no run is.
func isLoop(c *events.ContainerState, observedAt time.Time) bool {
	return c.RestartCount >= restartsOfLoop && !isStable(c.LastStartedAt, c.LastFinishedAt) &&
		!isStable(c.StartedAt, &observedAt)
}

func isStable(from, until *time.Time) bool {
	return from != nil && until != nil && until.Sub(*from) >= stableRun
}

func ofWaiting(c *events.ContainerState) *Failure {
	switch c.Reason {
	case imagePullBackOff, errImagePull:
		// The kubelet alternates between the two. One reason for both avoids repeated state changes.
		return &Failure{
			Reason:  errImagePull,
			Message: fmt.Sprintf("image %s cannot be pulled: %s", Name(c.Image), pullFailure(c.Image, c.Message)),
		}
	case crashLoopBackOff:
		if c.ExitCode == exitNotStarted {
			// The kubelet alternates between this and RunContainerError, which has the message.
			return &Failure{
				Reason: runContainerError, Message: fmt.Sprintf("container %s cannot be started (exit code 128)", Name(c.Name)),
			}
		}
		return keepsExiting(c)
	case createContainerError, createContainerConfigError:
		return &Failure{
			Reason:  c.Reason,
			Message: fmt.Sprintf("container %s cannot be created: %s", Name(c.Name), creationFailure(c.Message)),
		}
	case runContainerError:
		return &Failure{
			Reason:  c.Reason,
			Message: fmt.Sprintf("container %s cannot be started: %s", Name(c.Name), Detail(c.Message)),
		}
	default:
		return nil
	}
}

func keepsExiting(c *events.ContainerState) *Failure {
	return &Failure{
		Reason: crashLoopBackOff, Message: fmt.Sprintf("container %s keeps exiting: %s", Name(c.Name), exit(c.ExitCode)),
	}
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
	return Detail(message)
}

func creationFailure(message string) string {
	if strings.Contains(message, "runAsNonRoot") {
		return "its image runs as root, which is not allowed; use an image with another user"
	}
	return Detail(message)
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
