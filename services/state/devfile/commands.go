package devfile

import (
	"maps"
	"slices"
	"strings"

	"lockstep.internal/libs/workspaceagent"
)

// Limits of composite commands.
const (
	maxComposites = 10
	maxExpansions = 1000
)

// command is a command of the devfile.
type command struct {
	object

	id string
	// component and line of a command that runs in a container.
	component, line string
	// parts of a composite command.
	parts []string
}

// commands reads the commands. Their ids are in lower case: they are not sensitive to case.
func (r *reader) commands(top object) []command {
	var all []command
	seen := map[string]bool{}
	for _, o := range top.objects("commands") {
		c := command{object: o, id: strings.ToLower(o.literal("id"))}
		switch {
		case c.id == "":
			o.addf("id", "is missing")
		case seen[c.id]:
			o.addf("id", "%.80q is already the id of another command", c.id)
		}
		seen[c.id] = true
		o.ignore("attributes")
		switch kinds := o.present([]string{"exec", "apply", "composite"}); {
		case len(kinds) == 0:
			o.addf("exec", "is missing: a command has exec, apply or composite")
		case len(kinds) > 1:
			o.addf(kinds[1], "is a second kind of this command; a command has one")
		case kinds[0] == "exec":
			r.exec(&c)
		case kinds[0] == "composite":
			inner, _ := o.object("composite")
			for _, part := range inner.texts("commands") {
				c.parts = append(c.parts, strings.ToLower(part))
			}
			inner.ignore("group", "label", "parallel")
			inner.refuseUnknown()
		default:
			inner, _ := o.object("apply")
			inner.ignore("component", "group", "label")
			inner.refuseUnknown()
		}
		o.refuseUnknown()
		all = append(all, c)
	}
	return all
}

// exec reads a command line. The shell replaces variables such as ${PROJECT_SOURCE} in it.
func (r *reader) exec(c *command) {
	inner, _ := c.object.object("exec")
	c.component = inner.literal("component")
	line, folder := inner.text("commandLine"), inner.text("workingDir")
	if line == "" {
		inner.addf("commandLine", "is missing")
	}
	var b strings.Builder
	for _, variable := range inner.objects("env") {
		name, value := variable.text("name"), variable.text("value")
		variable.refuseUnknown()
		if !isVariable(name) {
			variable.addf("name", "%.80q is not a variable name: use letters, digits and underscores", name)
		}
		b.WriteString("export " + name + "=" + quote(value) + "\n")
	}
	if folder != "" {
		if strings.ContainsAny(folder, "\"\\`\x00\n") {
			inner.addf("workingDir", "%.80q is not a path", folder)
		}
		b.WriteString("cd \"" + folder + "\" || exit 1\n")
	}
	c.line = b.String() + line
	inner.ignore("group", "label", "hotReloadCapable")
	inner.refuseUnknown()
}

func isVariable(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(c rune) bool {
		return c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
	}) && (name[0] < '0' || name[0] > '9')
}

// quote returns a text as one word of the shell.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// offered are the commands of a container, for people.
func offered(all []command, component string) []workspaceagent.Command {
	var commands []workspaceagent.Command
	for _, c := range all {
		if c.component == component && c.line != "" {
			commands = append(commands, workspaceagent.Command{Name: c.id, Line: c.line})
		}
	}
	return commands
}

// events reads which commands run when a workspace starts, in this order, by the names of their containers.
func (r *reader) events(top object, all []command, containers []string) map[string][]workspaceagent.Command {
	events, exists := top.object("events")
	if !exists {
		return nil
	}
	for _, field := range []string{"preStart", "preStop", "postStop"} {
		if len(events.texts(field)) == 0 {
			continue
		}
		if field == "preStart" {
			events.addf(field, "is not supported; make these commands postStart, or a part of the image")
			continue
		}
		events.warnf(field, "the commands do not run: a workspace may stop at any time")
	}
	byID := map[string]command{}
	for _, c := range all {
		byID[c.id] = c
	}
	found := map[string][]workspaceagent.Command{}
	ids := events.texts("postStart")
	for i, id := range ids {
		at := index("postStart", i)
		for _, c := range r.expandCommand(events, at, byID, strings.ToLower(id), 0) {
			switch {
			case c.line == "":
				events.addf(at, "%.80q does not run in a container", c.id)
			case !slices.Contains(containers, c.component):
				c.addf("exec.component", "%.80q is not a container of this devfile", c.component)
			case slices.ContainsFunc(found[c.component], func(other workspaceagent.Command) bool { return other.Name == c.id }):
				events.warnf(at, "%q runs once", c.id)
			default:
				found[c.component] = append(found[c.component], workspaceagent.Command{Name: c.id, Line: c.line})
			}
		}
	}
	events.refuseUnknown()
	return found
}

// expandCommand returns the commands of a composite one, in their order.
func (r *reader) expandCommand(events object, at string, byID map[string]command, id string, depth int) []command {
	c, exists := byID[id]
	switch {
	case !exists:
		events.addf(at, "%.80q is not a command of this devfile; its commands are %q", id,
			slices.Sorted(maps.Keys(byID))[:min(len(byID), maxComposites)])
		return nil
	case depth > maxComposites || r.expansions >= maxExpansions:
		events.addf(at, "%.80q has composites more than %d deep, or more than %d commands", id, maxComposites, maxExpansions)
		return nil
	case c.parts == nil:
		return []command{c}
	}
	var all []command
	for _, part := range c.parts {
		r.expansions++
		all = append(all, r.expandCommand(events, at, byID, part, depth+1)...)
	}
	return all
}
