package devfile

import (
	"maps"
	"slices"

	"lockstep.internal/libs/workspaceagent"
)

// project is a repository to clone, and its path in the devfile.
type project struct {
	workspaceagent.Project

	path string
}

// projects reads the repositories to clone. Without projects, the first starter project that is a Git repository is
// cloned: starter projects are offers of which people choose one, and the devfile names the usual one first.
func (r *reader) projects(top object) []project {
	var projects []project
	for _, p := range top.objects("projects") {
		if _, isZip := p.object("zip"); isZip {
			p.addf("zip", "is not supported; use git")
			continue
		}
		projects = r.appendProject(projects, p)
	}
	hasProjects := len(top.items("projects")) > 0
	for _, p := range top.objects("starterProjects") {
		p.ignore("description", "subDir")
		if _, isZip := p.object("zip"); isZip || hasProjects || len(projects) > 0 {
			continue
		}
		projects = r.appendProject(projects, p)
	}
	return projects
}

// appendProject adds a project without faults.
func (r *reader) appendProject(projects []project, p object) []project {
	faults := len(r.paths)
	read := workspaceagent.Project{Name: p.literal("name"), Folder: p.text("clonePath")}
	p.ignore("attributes")
	git, exists := p.object("git")
	if !exists {
		p.addf("git", "is missing: give the repository")
	}
	remotes := git.textMap("remotes")
	from, _ := git.object("checkoutFrom")
	read.Revision = from.text("revision")
	remote := from.literal("remote")
	switch {
	case exists && len(remotes) == 0:
		git.addf("remotes", "are missing: give the URL of the repository")
	case remote == "" && len(remotes) == 1:
		remote = slices.Collect(maps.Keys(remotes))[0]
	case remote == "" && len(remotes) > 1:
		git.addf("checkoutFrom", "is missing its remote: name one of the remotes")
	case remote != "" && remotes[remote] == "":
		from.addf("remote", "%.80q is not one of the remotes", remote)
	}
	for _, name := range slices.Sorted(maps.Keys(remotes)) {
		address := r.expand(git.at("remotes."+clip(name)), remotes[name])
		if name == remote {
			read.URL = address
			continue
		}
		if read.Remotes == nil {
			read.Remotes = map[string]string{}
		}
		read.Remotes[name] = address
	}
	git.refuseUnknown()
	from.refuseUnknown()
	p.refuseUnknown()
	if len(r.paths) > faults {
		return projects
	}
	return append(projects, project{Project: read, path: p.path})
}
