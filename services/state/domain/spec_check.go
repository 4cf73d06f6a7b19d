package domain

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Limits of a spec. All of it has to fit into one manifest.
const (
	maxName     = 40
	maxPorts    = 50
	maxEnv      = 500
	maxEnvValue = 32 << 10
	maxCommand  = 100
	maxImage    = 500
	maxPath     = 253
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

// check notes what is wrong with the spec.
func (s Spec) check(f *faults) {
	switch {
	case s.Image == "":
		f.addf("image", "is required, such as registry.example/ide:9")
	case len(s.Image) > maxImage || !imagePattern().MatchString(s.Image):
		f.addf("image", "%.80q is no image reference; write it like registry.example/ide:9", s.Image)
	}
	s.checkPorts(f)
	s.checkEnv(f)
	f.quantity("cpu", s.CPU, true)
	f.quantity("memory", s.Memory, false)
	f.quantity("volume_size", s.VolumeSize, false)
	f.words("command", s.Command)
	f.words("args", s.Args)
	s.checkFiles(f)
}

func (s Spec) checkPorts(f *faults) {
	if len(s.Ports) > maxPorts {
		f.addf("ports", "are %d, at most %d may be", len(s.Ports), maxPorts)
	}
	names, numbers := map[string]bool{}, map[int32]bool{}
	for i, p := range s.Ports {
		at := index("ports", i)
		if wrong := validation.IsValidPortName(p.Name); len(wrong) > 0 {
			f.addf(at+".name", "%.80q is no port name: at most 15 lower-case letters, digits and inner hyphens, with a letter", p.Name)
		} else if names[p.Name] {
			f.addf(at+".name", "%q is the name of another port too", p.Name)
		}
		if p.Number < 1 || p.Number > 65535 {
			f.addf(at+".number", "%d is no port number; it is from 1 to 65535", p.Number)
		} else if numbers[p.Number] {
			f.addf(at+".number", "%d is the number of another port too", p.Number)
		}
		names[p.Name], numbers[p.Number] = true, true
	}
}

func (s Spec) checkEnv(f *faults) {
	if len(s.Env)+len(s.SecretEnv) > maxEnv {
		f.addf("env", "has %d variables with the secret ones, at most %d may be", len(s.Env)+len(s.SecretEnv), maxEnv)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		at := "env[" + clip(name) + "]"
		f.variable(at, name)
		if len(s.Env[name]) > maxEnvValue {
			f.addf(at, "has %d bytes, at most %d may be", len(s.Env[name]), maxEnvValue)
		}
		f.text(at, s.Env[name])
	}
	seen := map[string]bool{}
	for i, name := range s.SecretEnv {
		at := index("secret_env", i)
		f.variable(at, name)
		if _, plain := s.Env[name]; plain {
			f.addf(at, "%q is a plain variable too", name)
		}
		if seen[name] {
			f.addf(at, "%q is there twice", name)
		}
		seen[name] = true
	}
}

func (s Spec) checkFiles(f *faults) {
	seen := map[string]bool{}
	for i, name := range s.SecretFiles {
		at := index("secret_files", i)
		switch {
		case name == "" || len(name) > maxPath || !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }):
			f.addf(at, "%.80q is no path: 1 to %d printable characters", name, maxPath)
		case path.IsAbs(name) || path.Clean(name) != name || name == "." || name == ".." || strings.HasPrefix(name, "../") || strings.HasPrefix(name, ".."):
			f.addf(at, "%q is no plain path below /run/secrets/workspace", name)
		case seen[name]:
			f.addf(at, "%q is there twice", name)
		}
		seen[name] = true
	}
	for i, name := range s.SecretFiles {
		for parent := path.Dir(name); parent != "." && parent != "/"; parent = path.Dir(parent) {
			if seen[parent] {
				f.addf(index("secret_files", i), "%q lies below the file %q", name, parent)
			}
		}
	}
}

// name checks the name of a workspace: of its Service, its Deployment and, with a prefix, its namespace.
func (f *faults) name(at, name string) {
	if len(name) > maxName || len(validation.IsDNS1035Label(name)) > 0 {
		f.addf(at, "%.80q is no workspace name: 1 to %d lower-case letters, digits and inner hyphens, beginning with a letter", name, maxName)
	}
}

func (f *faults) variable(at, name string) {
	if len(validation.IsCIdentifier(name)) > 0 || len(name) > maxPath {
		f.addf(at, "%.80q is no variable name: letters, digits and underscores, not beginning with a digit", name)
	}
}

func (f *faults) words(at string, words []string) {
	if len(words) > maxCommand {
		f.addf(at, "has %d parts, at most %d may be", len(words), maxCommand)
	}
	for i, word := range words {
		f.text(index(at, i), word)
	}
}

func (f *faults) text(at, value string) {
	if !utf8.ValidString(value) || strings.ContainsRune(value, 0) {
		f.addf(at, "is no text: it is not UTF-8 or has a zero byte")
	}
}

// quantity checks a positive amount; only a divisible one may have parts of a whole.
func (f *faults) quantity(at, value string, divisible bool) {
	q, err := resource.ParseQuantity(value)
	switch {
	case err != nil:
		f.addf(at, "%.80q is no quantity; write it like 500m, 2 or 1Gi", value)
	case q.Sign() <= 0:
		f.addf(at, "%q is not more than nothing", value)
	case !divisible && q.MilliValue()%1000 != 0 && q.Value() < 1<<50:
		f.addf(at, "%q is no whole number of bytes", value)
	}
}

func index(field string, i int) string { return field + "[" + strconv.Itoa(i) + "]" }

func clip(name string) string {
	if len(name) > maxName {
		return strings.ToValidUTF8(name[:maxName], "") + "…"
	}
	return strings.ToValidUTF8(name, "\uFFFD")
}
