package registry

import (
	"regexp"
	"slices"
	"strings"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// Limits of a request.
const (
	// MaxScopes of one request.
	MaxScopes = 16
	// MaxName is the maximum length of the name of a repository, in bytes.
	MaxName = 255
)

const (
	repository = "repository"
	pull       = "pull"
	push       = "push"
)

// Access is what a token permits.
type Access struct {
	// Type is repository; tokens of jobs permit nothing else.
	Type string `json:"type"`
	Name string `json:"name"`
	// Actions are pull and push.
	Actions []string `json:"actions"`
}

// namePattern is that of repositories: components in lower case, with separators inside.
var namePattern = regexp.MustCompile(`^[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*(/[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*)*$`)

// ParseScope reads a scope such as "repository:group/project/image:pull,push". An error is the fault invalid_argument.
// Unknown types and actions are no error.
func ParseScope(scope string) (Access, error) {
	first, last := strings.IndexByte(scope, ':'), strings.LastIndexByte(scope, ':')
	if first <= 0 || last <= first+1 || len(scope) > 2*MaxName {
		return Access{}, fault.New(errcode.InvalidArgument,
			"scope: must be a type, a name and actions, such as repository:group/project:pull,push")
	}
	a := Access{Type: scope[:first], Name: scope[first+1 : last], Actions: strings.Split(scope[last+1:], ",")}
	if a.Type == repository && (len(a.Name) > MaxName || !namePattern.MatchString(a.Name)) {
		return Access{}, fault.New(errcode.InvalidArgument, "scope: the name of the repository is invalid")
	}
	return a, nil
}

// Rights of a job on the images of its project.
type Rights struct {
	// Path of the project, such as group/project. Its images have this name or begin with it and a slash. Upper case
	// counts as lower case, which names of images have.
	Path       string
	Pull, Push bool
}

// Grant returns what of the requested access is permitted. What is not permitted is left out.
func (r Rights) Grant(requested []Access) []Access {
	granted := []Access{}
	path := strings.ToLower(r.Path)
	for _, a := range requested {
		if a.Type != repository || path == "" || a.Name != path && !strings.HasPrefix(a.Name, path+"/") {
			continue
		}
		var actions []string
		if r.Pull && slices.Contains(a.Actions, pull) {
			actions = append(actions, pull)
		}
		if r.Push && slices.Contains(a.Actions, push) {
			actions = append(actions, push)
		}
		if len(actions) > 0 {
			granted = append(granted, Access{Type: repository, Name: a.Name, Actions: actions})
		}
	}
	return granted
}
