package route

import (
	"strconv"
	"strings"
)

// Workspace is a port of the Service of a workspace. It needs no name in the agent's configuration. Agents know which
// namespaces are those of workspaces.
type Workspace struct {
	Service, Namespace string
	Port               uint16
}

// String is <service>.<namespace>:<port>.
func (w Workspace) String() string {
	return w.Service + "." + w.Namespace + ":" + strconv.Itoa(int(w.Port))
}

// ParseWorkspace reads the text of a workspace. Others are not workspaces.
func ParseWorkspace(target string) (w Workspace, ok bool) {
	name, port, _ := strings.Cut(target, ":")
	w.Service, w.Namespace, _ = strings.Cut(name, ".")
	number, err := strconv.ParseUint(port, 10, 16)
	w.Port = uint16(number)
	valid := err == nil && ValidTarget(w.Service) && ValidTarget(w.Namespace) && number > 0
	return w, valid && w.String() == target
}

// IsWorkspace reports whether a target is a workspace.
func IsWorkspace(target string) bool {
	_, is := ParseWorkspace(target)
	return is
}
