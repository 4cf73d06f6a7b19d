package targets

import (
	"errors"
	"fmt"
	"strings"

	"lockstep.internal/services/relay/route"
)

// Workspaces resolves workspaces to the addresses of their Services. The zero value allows none.
type Workspaces struct {
	// NamespacePrefix of the namespaces of workspaces.
	NamespacePrefix string
	// Domain of Services, such as svc; empty allows no workspace.
	Domain string
}

var errNoWorkspaces = errors.New("workspaces are disabled: the agent's targets.workspace_domain is empty")

// Address returns the address of a workspace. Its error is sent to the caller.
func (w Workspaces) Address(to route.Workspace) (Address, error) {
	switch {
	case w.Domain == "":
		return Address{}, errNoWorkspaces
	case w.NamespacePrefix == "" || !strings.HasPrefix(to.Namespace, w.NamespacePrefix):
		return Address{}, fmt.Errorf("namespace %s is not of a workspace: it does not begin with %q", to.Namespace,
			w.NamespacePrefix)
	}
	return Address{Host: to.Service + "." + to.Namespace + "." + w.Domain, Port: to.Port}, nil
}
