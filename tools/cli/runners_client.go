package cli

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/tools/client"
)

// maxRunnersPage is the size of the largest page of the runners service.
const maxRunnersPage = 500

// runnersAPI returns a client of the runners service. Its access tokens come from the state service.
func (a *app) runnersAPI() (*client.Runners, error) {
	if a.client.RunnersServer == "" {
		return nil, fault.New(
			errcode.InvalidArgument,
			"no runners service is configured: set --runners-server, LOCKSTEP_RUNNERS_SERVER or runners_server in %s",
			a.missingOrNot(),
		)
	}
	api, err := a.api()
	if err != nil {
		return nil, err
	}
	return api.Runners(http.DefaultClient, a.client.RunnersServer), nil
}

// runnersAndNames returns a client of the runners service, and the names of the state service.
func (a *app) runnersAndNames(ctx context.Context) (*client.Runners, *names, error) {
	api, err := a.runnersAPI()
	if err != nil {
		return nil, nil, err
	}
	names, err := a.namesOfAPI(ctx)
	return api, names, err
}

// projectOrOnly returns the id of a project by its id, path or name. Without one, it returns the only project that the
// caller can see.
func (n *names) projectOrOnly(text string) (int64, error) {
	if text != "" {
		return n.projectID(text)
	}
	all, err := n.projects.list(n.readProjects)()
	switch {
	case err != nil:
		return 0, err
	case len(all) == 0:
		return 0, fault.New(errcode.NotFound, "you can see no project: create one with `lockstep project create`")
	case len(all) > 1:
		return 0, fault.New(errcode.InvalidArgument, "you can see several projects: choose one with --project: %s",
			described(all))
	default:
		return all[0].id, nil
	}
}

// readPages reads items until there are limit of them; 0 means all. token is empty if there are no more.
func readPages[T any](
	limit int, read func(size int32, token string) (items []T, next string, err error),
) (all []T, token string, err error) {
	if limit < 0 {
		return nil, "", fault.New(errcode.InvalidArgument, "--limit %d must not be negative", limit)
	}
	for {
		size := maxRunnersPage
		if limit > 0 {
			size = min(size, limit-len(all))
		}
		items, next, err := read(int32(size), token)
		if err != nil {
			return nil, "", err
		}
		all, token = append(all, items...), next
		if token == "" || limit > 0 && len(all) >= limit {
			return all, token, nil
		}
	}
}

// enumFlag parses the values of a flag for an enum such as JOB_STATE_RUNNING, without its prefix.
func enumFlag[T ~int32](flag string, texts []string, prefix string, values map[string]int32) ([]T, error) {
	out := make([]T, 0, len(texts))
	for _, text := range texts {
		value, known := values[prefix+strings.ToUpper(strings.ReplaceAll(text, "-", "_"))]
		if !known || value == 0 {
			return nil, fault.New(errcode.InvalidArgument, "%s %q must be %s", flag, text,
				strings.Join(enumWords(prefix, values), ", "))
		}
		out = append(out, T(value))
	}
	return out, nil
}

// enumWords returns the values of an enum without its prefix, in their order.
func enumWords(prefix string, values map[string]int32) []string {
	words := make([]string, 0, len(values))
	for name, value := range values {
		if value != 0 {
			words = append(words, name)
		}
	}
	slices.SortFunc(words, func(a, b string) int { return int(values[a] - values[b]) })
	for i, name := range words {
		words[i] = enumWord(name, prefix)
	}
	return words
}

// enumWord turns a value such as RUNNER_STATUS_NEVER_CONTACTED into never_contacted.
func enumWord(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }
