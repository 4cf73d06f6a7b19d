package policy

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/ext"
)

const (
	// CostLimit is the maximum cost of one evaluation of an expression. To compare a text costs about 1.
	CostLimit = 100_000
	// Timeout of the evaluation of a policy.
	Timeout = 5 * time.Second
	// maxExpression is the maximum length of an expression in characters.
	maxExpression = 4096
	// checkEvery is the number of steps of a comprehension between two checks of the time-out.
	checkEvery = 100
)

// environment is what expressions may use.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	env, err := cel.NewEnv(
		cel.OptionalTypes(),
		ext.NativeTypes(ext.ParseStructTag("json"), reflect.TypeFor[Job](), reflect.TypeFor[Project](),
			reflect.TypeFor[User](), reflect.TypeFor[Group](), reflect.TypeFor[Runner]()),
		cel.ParserExpressionSizeLimit(maxExpression),
		cel.Variable("job", cel.ObjectType("policy.Job")),
		cel.Variable("project", cel.ObjectType("policy.Project")),
		cel.Variable("user", cel.ObjectType("policy.User")),
		cel.Variable("groups", cel.ListType(cel.ObjectType("policy.Group"))),
		cel.Variable("variables", cel.MapType(cel.StringType, cel.StringType)),
		cel.Variable("runners", cel.ListType(cel.ObjectType("policy.Runner"))),
		cel.Variable("data", cel.MapType(cel.StringType, cel.DynType)),
	)
	if err != nil {
		return nil, fmt.Errorf("set up CEL: %w", err)
	}
	return env, nil
})

// runnerEnvironment is what expressions about each runner may use.
var runnerEnvironment = sync.OnceValues(func() (*cel.Env, error) {
	env, err := environment()
	if err != nil {
		return nil, err
	}
	if env, err = env.Extend(cel.Variable("runner", cel.ObjectType("policy.Runner"))); err != nil {
		return nil, fmt.Errorf("set up CEL: %w", err)
	}
	return env, nil
})

// expression is a compiled expression.
type expression struct {
	program cel.Program
	// at names the expression in messages.
	at string
}

// compile compiles an expression with a result type. Only expressions about each runner may use runner.
func compile(text string, want *cel.Type, perRunner bool) (*expression, error) {
	if utf8.RuneCountInString(text) > maxExpression {
		return nil, fmt.Errorf("the expression has more than %d characters", maxExpression)
	}
	setUp := environment
	if perRunner {
		setUp = runnerEnvironment
	}
	env, err := setUp()
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(text)
	if problems := issues.Errors(); len(problems) > 0 {
		first := problems[0]
		return nil, fmt.Errorf("%s, at line %d, character %d of the expression", firstLine(first.Message),
			first.Location.Line(), first.Location.Column()+1)
	}
	if issues.Err() != nil {
		return nil, fmt.Errorf("%s", firstLine(issues.Err().Error()))
	}
	if out := ast.OutputType(); !out.IsExactType(want) && !out.IsExactType(cel.DynType) &&
		(want.Kind() != types.ListKind || !out.IsExactType(cel.ListType(cel.DynType))) {
		return nil, fmt.Errorf("the expression is of type %s: it must be %s", out, want)
	}
	program, err := env.Program(ast, cel.CostLimit(CostLimit), cel.InterruptCheckFrequency(checkEvery))
	if err != nil {
		return nil, fmt.Errorf("%s", firstLine(err.Error()))
	}
	return &expression{program: program}, nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return strings.TrimSpace(line)
}

// activation returns the values of the variables.
func (in Input) activation(data map[string]any) map[string]any {
	variables := in.Variables
	if variables == nil {
		variables = map[string]string{}
	}
	return map[string]any{
		"job": in.Job, "project": in.Project, "user": in.User, "groups": in.Groups, "variables": variables,
		"runners": in.Runners, "data": data,
	}
}

// EvaluationError reports an expression that has no result for a job.
type EvaluationError struct {
	// At is file, line and column of the expression.
	At string
	// Err is the cause.
	Err error
}

// Error returns place and cause.
func (e *EvaluationError) Error() string { return fmt.Sprintf("%s: %v", e.At, e.Err) }

// Unwrap returns the cause.
func (e *EvaluationError) Unwrap() error { return e.Err }

var errLate = errors.New("the policy was not evaluated in time")

// eval returns the result.
func (e *expression) eval(ctx context.Context, values map[string]any) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, &EvaluationError{At: e.at, Err: errLate}
	}
	out, _, err := e.program.ContextEval(ctx, values)
	if err != nil {
		if ctx.Err() != nil {
			err = errLate
		}
		return nil, &EvaluationError{At: e.at, Err: err}
	}
	if list, ok := out.(interface {
		ConvertToNative(t reflect.Type) (any, error)
	}); ok && out.Type() == types.ListType {
		texts, err := list.ConvertToNative(reflect.TypeFor[[]string]())
		if err != nil {
			return nil, &EvaluationError{At: e.at, Err: fmt.Errorf("the result is not a list of texts: %w", err)}
		}
		return texts, nil
	}
	return out.Value(), nil
}

func evalAs[T any](ctx context.Context, e *expression, values map[string]any, want string) (T, error) {
	out, err := e.eval(ctx, values)
	if err != nil {
		return *new(T), err
	}
	result, ok := out.(T)
	if !ok {
		return *new(T), &EvaluationError{At: e.at, Err: fmt.Errorf("the result is not %s", want)}
	}
	return result, nil
}

func (e *expression) isTrue(ctx context.Context, values map[string]any) (bool, error) {
	return evalAs[bool](ctx, e, values, "true or false")
}

// Condition is a match condition of a controller.
type Condition struct{ expression *expression }

// CompileCondition compiles a match condition in CEL.
func CompileCondition(text string) (*Condition, error) {
	e, err := compile(text, cel.BoolType, false)
	if err != nil {
		return nil, fmt.Errorf("match: %w", err)
	}
	e.at = "match"
	return &Condition{e}, nil
}

// Matches reports whether the condition is true for a job. An error is an [*EvaluationError].
func (c *Condition) Matches(ctx context.Context, in Input) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	return c.expression.isTrue(ctx, in.activation(map[string]any{}))
}
