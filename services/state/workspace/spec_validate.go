package workspace

import (
	"path"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"lockstep.internal/libs/workspaceagent"
	"lockstep.internal/services/state/invalid"
)

// Limits of a spec. The rendered manifests must fit into one message.
const (
	maxName     = 40
	maxPorts    = 50
	maxEnv      = 500
	maxFiles    = 200
	maxEnvValue = 32 << 10
	maxCommand  = 100
	maxImage    = 500
	maxPath     = 253

	// agentPortName is the name of the port of the workspace agent.
	agentPortName = "lockstep-ssh"

	maxProjects = 20
	maxRemotes  = 10
)

// Parts of an image reference: [registry[:port]/]path[:tag][@algorithm:digest].
const (
	imageHost      = `(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])`
	imageRegistry  = `(?:` + imageHost + `(?:\.` + imageHost + `)*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?`
	imageComponent = `[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*`
	imageName      = `(?:` + imageRegistry + `/)?` + imageComponent + `(?:/` + imageComponent + `)*`
	imageTag       = `[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}`
	imageDigest    = `[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}`
)

func imagePattern() *regexp.Regexp {
	return regexp.MustCompile(`^` + imageName + `(?::` + imageTag + `)?(?:@` + imageDigest + `)?$`)
}

// IsImage reports whether a text is an image reference.
func IsImage(text string) bool { return len(text) <= maxImage && imagePattern().MatchString(text) }

// fieldErrors collects validation errors by field.
type fieldErrors struct{ invalid.Fields }

// check adds every error of the spec.
func (s Spec) check(f *fieldErrors) {
	f.image("image", s.Image)
	s.checkPorts(f)
	s.checkEnv(f)
	f.quantity("cpu", s.CPU, true)
	f.quantity("memory", s.Memory, false)
	f.quantity("volume_size", s.VolumeSize, false)
	f.words("command", s.Command)
	f.words("args", s.Args)
	if s.StopAfterIdle != 0 && s.StopAfterIdle < MinStopAfterIdle {
		f.Addf("stop_after_idle", "%s is neither 0 (by the policy of the agent) nor at least %s",
			s.StopAfterIdle, MinStopAfterIdle)
	}
	s.checkFiles(f)
	s.checkProjects(f)
	s.checkContainers(f)
	s.checkEditor(f)
}

func (s Spec) checkProjects(f *fieldErrors) {
	if len(s.Projects) > maxProjects {
		f.Addf("projects", "has %d projects, the limit is %d", len(s.Projects), maxProjects)
	}
	folders := map[string]bool{}
	for i, p := range s.Projects {
		at := index("projects", i)
		switch err := p.Validate(); {
		case err != nil:
			f.Addf(at, "%v", err)
		case len(p.Remotes) > maxRemotes:
			f.Addf(at, "has %d further remotes, the limit is %d", len(p.Remotes), maxRemotes)
		case folders[p.Path()]:
			f.Addf(at, "its folder %.80q is that of another project", p.Path())
		}
		folders[p.Path()] = true
	}
}

func (s Spec) checkPorts(f *fieldErrors) {
	if len(s.Ports) > maxPorts {
		f.Addf("ports", "has %d ports, the limit is %d", len(s.Ports), maxPorts)
	}
	names, numbers := map[string]bool{}, map[int32]bool{}
	for i, p := range s.Ports {
		at := index("ports", i)
		if problems := validation.IsValidPortName(p.Name); len(problems) > 0 {
			f.Addf(
				at+".name",
				"%.80q is not a port name: use up to 15 lower-case letters, digits and inner hyphens, with a letter",
				p.Name,
			)
		} else if names[p.Name] {
			f.Addf(at+".name", "%q is the name of another port", p.Name)
		}
		if p.Number < 1 || p.Number > 65535 {
			f.Addf(at+".number", "%d is not a port number from 1 to 65535", p.Number)
		} else if numbers[p.Number] {
			f.Addf(at+".number", "%d is the number of another port", p.Number)
		}
		if p.Name == agentPortName || p.Number == workspaceagent.Port {
			f.Addf(at, "the name %s and the port %d are those of the workspace agent", agentPortName, workspaceagent.Port)
		}
		names[p.Name], numbers[p.Number] = true, true
	}
}

func (s Spec) checkEnv(f *fieldErrors) {
	count := len(s.Env) + len(s.SecretEnv)
	for _, c := range s.Containers {
		count += len(c.Env)
	}
	if count > maxEnv {
		f.Addf("env", "has %d variables with the secret ones and those of other containers, the limit is %d", count, maxEnv)
	}
	f.variables("env", s.Env)
	seen := map[string]bool{}
	for i, name := range s.SecretEnv {
		at := index("secret_env", i)
		f.variable(at, name)
		if _, plain := s.Env[name]; plain {
			f.Addf(at, "%q is also a plain variable", name)
		}
		if seen[name] {
			f.Addf(at, "%q is repeated", name)
		}
		seen[name] = true
	}
}

func (s Spec) checkFiles(f *fieldErrors) {
	if len(s.SecretFiles) > maxFiles {
		f.Addf("secret_files", "has %d files, the limit is %d", len(s.SecretFiles), maxFiles)
	}
	seen := map[string]bool{}
	for i, name := range s.SecretFiles {
		at := index("secret_files", i)
		switch {
		case name == "" || len(name) > maxPath || !utf8.ValidString(name) ||
			strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }):
			f.Addf(at, "%.80q is not a path of 1 to %d printable characters", name, maxPath)
		case path.IsAbs(name) || path.Clean(name) != name || name == "." || name == ".." ||
			strings.HasPrefix(name, "../") || strings.HasPrefix(name, ".."):
			f.Addf(at, "%q is not a plain path below /run/secrets/workspace", name)
		case seen[name]:
			f.Addf(at, "%q is repeated", name)
		}
		seen[name] = true
	}
	for i, name := range s.SecretFiles {
		for parent := path.Dir(name); parent != "." && parent != "/"; parent = path.Dir(parent) {
			if seen[parent] {
				f.Addf(index("secret_files", i), "%q is below the file %q", name, parent)
			}
		}
	}
}

// ValidName reports whether a name is a workspace name. It also names the Service, Deployment and namespace.
func ValidName(name string) bool {
	return len(name) <= maxName && len(validation.IsDNS1035Label(name)) == 0
}

func (f *fieldErrors) name(at, name string) {
	if !ValidName(name) {
		f.Addf(
			at,
			"%.80q is not a workspace name: use 1 to %d lower-case letters, digits and inner hyphens, starting with a letter",
			name,
			maxName,
		)
	}
}

func (f *fieldErrors) variable(at, name string) {
	if len(validation.IsCIdentifier(name)) > 0 || len(name) > maxPath {
		f.Addf(at, "%.80q is not a variable name: use letters, digits and underscores, not starting with a digit", name)
	}
}

func (f *fieldErrors) words(at string, words []string) {
	if len(words) > maxCommand {
		f.Addf(at, "has %d parts, the limit is %d", len(words), maxCommand)
	}
	for i, word := range words {
		f.text(index(at, i), word)
	}
}

func (f *fieldErrors) text(at, value string) {
	if !utf8.ValidString(value) || strings.ContainsRune(value, 0) {
		f.Addf(at, "is not valid UTF-8 or contains a NUL byte")
	}
}

// quantity checks a positive Kubernetes quantity. Fractions are allowed only if divisible is true.
func (f *fieldErrors) quantity(at, value string, divisible bool) {
	q, err := resource.ParseQuantity(value)
	switch {
	case err != nil:
		f.Addf(at, "%.80q is not a quantity such as 500m, 2 or 1Gi", value)
	case q.Sign() <= 0:
		f.Addf(at, "%q is not positive", value)
	case !divisible && q.MilliValue()%1000 != 0 && q.Value() < 1<<50:
		f.Addf(at, "%q is not a whole number of bytes", value)
	}
}

func index(field string, i int) string { return field + "[" + strconv.Itoa(i) + "]" }

func clip(name string) string {
	if len(name) > maxName {
		return strings.ToValidUTF8(name[:maxName], "") + "…"
	}
	return strings.ToValidUTF8(name, "\uFFFD")
}
