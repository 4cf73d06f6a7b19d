package pipeline

import (
	"net/url"
	"strconv"
	"strings"

	"lockstep.internal/services/runners/cifile"
	"lockstep.internal/services/runners/job"
)

// Predefined returns the variables that every job of the pipeline has, with the names and meanings of GitLab's
// documentation. Variables that depend on Git, on the runner or on the attempt, such as CI_JOB_ID, are not there. A ref
// counts as a branch unless it is a tag.
func Predefined(in Input, configPath string) []job.Variable {
	var out variables
	out.add("CI", "true")
	out.add("GITLAB_CI", "true")
	out.add("CI_SERVER", "yes")
	out.add("CI_SERVER_NAME", "Lockstep")
	out.server(in.ServerURL)
	out.add("CI_CONFIG_PATH", configPath)
	out.add("CI_PIPELINE_SOURCE", in.Source)
	out.project(in.Project)
	out.ref(in.Ref)
	if in.User.ID != 0 {
		out.add("GITLAB_USER_ID", strconv.FormatInt(in.User.ID, 10))
		out.add("GITLAB_USER_LOGIN", in.User.Login)
	}
	return out
}

type variables []job.Variable

// add adds a variable whose value the runner does not expand.
func (v *variables) add(key, value string) {
	*v = append(*v, job.Variable{Key: key, Value: value, Raw: true, Predefined: true})
}

func (v *variables) server(address *url.URL) {
	if address == nil {
		return
	}
	port := address.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[address.Scheme]
	}
	v.add("CI_SERVER_URL", strings.TrimSuffix(address.String(), "/"))
	v.add("CI_SERVER_PROTOCOL", address.Scheme)
	v.add("CI_SERVER_HOST", address.Hostname())
	v.add("CI_SERVER_PORT", port)
	v.add("CI_API_V4_URL", address.JoinPath("api/v4").String())
}

func (v *variables) project(p Project) {
	parts := strings.Split(p.Path, "/")
	v.add("CI_PROJECT_ID", strconv.FormatInt(p.ID, 10))
	v.add("CI_PROJECT_NAME", parts[len(parts)-1])
	v.add("CI_PROJECT_PATH", p.Path)
	v.add("CI_PROJECT_PATH_SLUG", slug(p.Path))
	v.add("CI_PROJECT_NAMESPACE", strings.Join(parts[:len(parts)-1], "/"))
	v.add("CI_PROJECT_ROOT_NAMESPACE", parts[0])
	if p.DefaultBranch != "" {
		v.add("CI_DEFAULT_BRANCH", p.DefaultBranch)
	}
}

func (v *variables) ref(r Ref) {
	if r.Name == "" {
		return
	}
	v.add("CI_COMMIT_REF_NAME", r.Name)
	v.add("CI_COMMIT_REF_SLUG", slug(r.Name))
	v.add("CI_COMMIT_REF_PROTECTED", strconv.FormatBool(r.Protected))
	if r.Tag {
		v.add("CI_COMMIT_TAG", r.Name)
	} else {
		v.add("CI_COMMIT_BRANCH", r.Name)
	}
}

// predefinedOf returns the variables that only this copy of a job has.
func predefinedOf(j *cifile.Job, c jobCopy) []job.Variable {
	var out variables
	out.add("CI_JOB_NAME", c.name)
	out.add("CI_JOB_NAME_SLUG", slug(c.name))
	out.add("CI_JOB_STAGE", j.Stage)
	if c.index > 0 {
		out.add("CI_NODE_INDEX", strconv.Itoa(c.index))
	}
	out.add("CI_NODE_TOTAL", strconv.Itoa(c.total))
	return out
}

const maxSlug = 63 // of a label in the DNS

// slug returns the text for use in host names: in lower case, with - for all but letters and digits of ASCII, without -
// at the ends.
func slug(text string) string {
	replaced := []byte(strings.ToLower(text))
	for i, c := range replaced {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			replaced[i] = '-'
		}
	}
	replaced = replaced[:min(len(replaced), maxSlug)]
	return strings.Trim(string(replaced), "-")
}

// merge returns the variables of all lists. Of two with the same name, the one of the later list counts, at the place
// of the first.
func merge(lists ...[]job.Variable) []job.Variable {
	total := 0
	for _, list := range lists {
		total += len(list)
	}
	out := make([]job.Variable, 0, total)
	places := make(map[string]int, total)
	for _, list := range lists {
		for _, v := range list {
			if place, ok := places[v.Key]; ok {
				out[place] = v
				continue
			}
			places[v.Key] = len(out)
			out = append(out, v)
		}
	}
	return out
}

// overridden returns the predefined variables that others have replaced in a list.
func overridden(list []job.Variable, predefined []job.Variable) []job.Variable {
	kept := make(map[string]bool, len(predefined))
	for _, v := range list {
		kept[v.Key] = v.Predefined
	}
	var out []job.Variable
	for _, v := range predefined {
		if !kept[v.Key] {
			out = append(out, v)
		}
	}
	return out
}

// ofFile converts variables of a file.
func ofFile(list []cifile.Variable) []job.Variable {
	out := make([]job.Variable, len(list))
	for i, v := range list {
		out[i] = job.Variable{Key: v.Name, Value: v.Value, Raw: v.Raw}
	}
	return out
}

func values(list []job.Variable) map[string]string {
	out := make(map[string]string, len(list))
	for _, v := range list {
		out[v.Key] = v.Value
	}
	return out
}

func size(list []job.Variable) int {
	n := 0
	for _, v := range list {
		n += len(v.Key) + len(v.Value)
	}
	return n
}
