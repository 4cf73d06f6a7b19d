package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
)

// named is something with an id and a path of names, such as acme/platform/web. A user has one name.
type named struct {
	id   int64
	path string
	// retired is found by its name only if nothing else has it, such as a revoked agent.
	retired bool
}

// maxCandidates limits the names in an error.
const maxCandidates = 10

// find returns the id of a text: an id, a path, or its last names if they are unique. kind names it in errors.
func find(kind, text string, list func() ([]named, error)) (int64, error) {
	if id, err := strconv.ParseInt(text, 10, 64); err == nil && id > 0 {
		return id, nil
	}
	all, err := list()
	if err != nil {
		return 0, err
	}
	var exact, found, retired []named
	for _, n := range all {
		switch {
		case n.path == text && !n.retired:
			exact = append(exact, n)
		case n.path != text && !strings.HasSuffix(n.path, "/"+text):
		case n.retired:
			retired = append(retired, n)
		default:
			found = append(found, n)
		}
	}
	for _, candidates := range [][]named{exact, found, retired} {
		switch len(candidates) {
		case 0:
			continue
		case 1:
			return candidates[0].id, nil
		default:
			return 0, fault.New(errcode.InvalidArgument, "several %ss are named %q: use one of %s", kind, text,
				described(candidates))
		}
	}
	all = slices.DeleteFunc(all, func(n named) bool { return n.retired })
	if len(all) == 0 {
		return 0, fault.New(errcode.NotFound, "%s %q does not exist, or you may not see it: you can see no %s", kind, text,
			kind)
	}
	return 0, fault.New(errcode.NotFound, "%s %q does not exist, or you may not see it: you can see %s", kind, text,
		described(all))
}

// described returns the paths with the ids.
func described(all []named) string {
	texts := make([]string, 0, len(all))
	for _, n := range all {
		texts = append(texts, fmt.Sprintf("%s (%d)", n.path, n.id))
	}
	slices.Sort(texts)
	if more := len(texts) - maxCandidates; more > 0 {
		texts = append(texts[:maxCandidates], fmt.Sprintf("%d more", more))
	}
	return strings.Join(texts, ", ")
}

// names finds ids by names, and the names of ids. It reads each list at most once.
type names struct {
	ctx context.Context //nolint:containedctx // it lives as long as one command
	api *client.API
	// hidden: the output has ids only.
	hidden   bool
	projects lazy
	agents   lazy
	users    lazy
	groups   lazy
	// organizations are read with the groups.
	organizations lazy
}

// lazy is a list that is read on first use.
type lazy struct {
	read bool
	all  []named
	err  error
}

func (l *lazy) list(read func() ([]named, error)) func() ([]named, error) {
	return func() ([]named, error) {
		if !l.read {
			l.all, l.err = read()
			l.read = true
		}
		return slices.Clone(l.all), l.err
	}
}

func (a *app) names(ctx context.Context, api *client.API) *names {
	return &names{ctx: ctx, api: api, hidden: a.output != outputTable}
}

// namesOfAPI returns the names for a command of another service.
func (a *app) namesOfAPI(ctx context.Context) (*names, error) {
	api, err := a.api()
	if err != nil {
		return nil, err
	}
	return a.names(ctx, api), nil
}

func (n *names) readProjects() ([]named, error) {
	projects, err := n.api.Projects(n.ctx)
	out := make([]named, 0, len(projects))
	for _, p := range projects {
		out = append(out, named{id: p.GetId(), path: p.GetPath()})
	}
	return out, err
}

// readAgents returns agents with the path of their project and their name.
func (n *names) readAgents() ([]named, error) {
	agents, err := listAgents(n.ctx, n.api, 0)
	if err != nil {
		return nil, err
	}
	out := make([]named, 0, len(agents))
	for _, g := range agents {
		out = append(out, named{
			id: g.GetId(), path: n.nameOf(&n.projects, n.readProjects, g.GetProjectId()) + "/" + g.GetName(),
			retired: g.GetRevoked(),
		})
	}
	return out, nil
}

// readUsers returns all users to an administrator, and the caller to everybody else.
func (n *names) readUsers() ([]named, error) {
	users, err := n.api.Users(n.ctx)
	if fault.Is(err, errcode.PermissionDenied) {
		var me *connect.Response[statev1.WhoAmIResponse]
		me, err = n.api.Directory.WhoAmI(n.ctx, connect.NewRequest(&statev1.WhoAmIRequest{}))
		if err == nil {
			users = []*statev1.User{me.Msg.GetUser()}
		}
	}
	out := make([]named, 0, len(users))
	for _, u := range users {
		out = append(out, named{id: u.GetId(), path: u.GetUsername()})
	}
	return out, err
}

// readOrganizations returns the organizations that the caller may read, and those of the caller's projects.
func (n *names) readOrganizations() ([]named, error) {
	all, err := n.api.Organizations(n.ctx)
	if err != nil {
		return nil, err
	}
	paths := map[int64]string{}
	for _, o := range all {
		paths[o.GetId()] = o.GetName()
	}
	projects, err := n.api.Projects(n.ctx)
	for _, p := range projects {
		paths[p.GetOrganizationId()], _, _ = strings.Cut(p.GetPath(), "/")
	}
	return byPath(paths), err
}

// readGroups returns the groups of the organizations that the caller may read, and those of the caller's projects.
func (n *names) readGroups() ([]named, error) {
	organizations, err := n.organizations.list(n.readOrganizations)()
	if err != nil {
		return nil, err
	}
	paths := map[int64]string{}
	for _, o := range organizations {
		groups, err := n.api.Groups(n.ctx, o.id)
		if err != nil && !fault.Is(err, errcode.NotFound) { // the caller may read only a part of the organization
			return nil, err
		}
		byID := map[int64]*statev1.Group{}
		for _, g := range groups {
			byID[g.GetId()] = g
		}
		for _, g := range groups {
			path := g.GetName()
			for above := byID[g.GetParentGroupId()]; above != nil; above = byID[above.GetParentGroupId()] {
				path = above.GetName() + "/" + path
			}
			paths[g.GetId()] = o.path + "/" + path
		}
	}
	projects, err := n.api.Projects(n.ctx)
	for _, p := range projects {
		paths[p.GetGroupId()] = p.GetPath()[:strings.LastIndexByte(p.GetPath(), '/')]
	}
	return byPath(paths), err
}

func byPath(paths map[int64]string) []named {
	out := make([]named, 0, len(paths))
	for id, path := range paths {
		out = append(out, named{id: id, path: path})
	}
	slices.SortFunc(out, func(a, b named) int { return strings.Compare(a.path, b.path) })
	return out
}

// projectID returns the id of a project by its id, path or name; 0 for "".
func (n *names) projectID(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	return find("project", text, n.projects.list(n.readProjects))
}

// agentID returns the id of an agent by its id, name, or path of project and name; 0 for "".
func (n *names) agentID(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	return find("agent", text, n.agents.list(n.readAgents))
}

// agentOf is agentID for an agent of a project; 0 means any project.
func (n *names) agentOf(projectID int64, text string) (int64, error) {
	if text == "" || projectID == 0 {
		return n.agentID(text)
	}
	of := n.nameOf(&n.projects, n.readProjects, projectID) + "/"
	return find("agent", text, func() ([]named, error) {
		all, err := n.agents.list(n.readAgents)()
		return slices.DeleteFunc(all, func(one named) bool { return !strings.HasPrefix(one.path, of) }), err
	})
}

// userID returns the id of a user by id or name; 0 for "". Only administrators can name others.
func (n *names) userID(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	return find("user", text, n.users.list(n.readUsers))
}

func (n *names) groupID(text string) (int64, error) {
	return find("group", text, n.groups.list(n.readGroups))
}

func (n *names) organizationID(text string) (int64, error) {
	return find("organization", text, n.organizations.list(n.readOrganizations))
}

// scope returns the path of an organization, group or project.
func (n *names) scope(kind statev1.ScopeKind, id int64) string {
	switch kind {
	case statev1.ScopeKind_SCOPE_KIND_ORGANIZATION:
		return n.shown(&n.organizations, n.readOrganizations, id)
	case statev1.ScopeKind_SCOPE_KIND_GROUP:
		return n.shown(&n.groups, n.readGroups, id)
	case statev1.ScopeKind_SCOPE_KIND_PROJECT, statev1.ScopeKind_SCOPE_KIND_UNSPECIFIED:
		return n.project(id)
	default:
		return n.project(id)
	}
}

// projectOrAll returns the path of a project, "all" for 0.
func (n *names) projectOrAll(id int64) string {
	if id == 0 {
		return "all"
	}
	return n.project(id)
}

// project returns the path of a project, or its id if the caller may not see it.
func (n *names) project(id int64) string { return n.shown(&n.projects, n.readProjects, id) }

// group returns the path of a group.
func (n *names) group(id int64) string { return n.shown(&n.groups, n.readGroups, id) }

// agent returns the name of an agent.
func (n *names) agent(id int64) string {
	return lastName(n.shown(&n.agents, n.readAgents, id))
}

func lastName(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// user returns the name of a user.
func (n *names) user(id int64) string { return n.shown(&n.users, n.readUsers, id) }

// shown returns the name of an id in a table.
func (n *names) shown(list *lazy, read func() ([]named, error), id int64) string {
	if n.hidden {
		return strconv.FormatInt(id, 10)
	}
	return n.nameOf(list, read, id)
}

func (n *names) nameOf(list *lazy, read func() ([]named, error), id int64) string {
	all, _ := list.list(read)() // the id is enough for people if the names cannot be read
	for _, one := range all {
		if one.id == id {
			return one.path
		}
	}
	return strconv.FormatInt(id, 10)
}
