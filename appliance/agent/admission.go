package agent

import (
	"regexp"
	"slices"

	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
)

// enginePattern is what an engine name must match (agent protocol E.5).
var enginePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$`)

// byReference lists the engines whose agents find the original arguments of a retried task themselves.
var byReference = []string{"celery", "rq", "dramatiq"}

// admit applies the checks of agent protocol E.5 that look at the agent and the payload, in their order. An inventory
// that was never reported is unknown and admits everything; the agent checks such commands itself.
func admit(a *CommandAgent, spec *ActionSpec, payload rawjson.Value) error {
	engine, path, err := admitEngine(spec, payload)
	if err != nil {
		return err
	}
	if engine != "" && a.ReportedInventory() {
		if err := admitInventory(a, spec, engine); err != nil {
			return err
		}
	}
	if !spec.RetryFamily || slices.Contains(byReference, engine) {
		return nil
	}
	if payload.Get("override_args").IsAbsent() || payload.Get("override_kwargs").IsAbsent() {
		return admission(fault.Conflict, a, spec, engine, "override_arguments_required",
			path+": "+engine+" cannot find the original arguments of a task: give override_args and override_kwargs")
	}
	return nil
}

// admitEngine finds the engine that the payload names and checks its form.
func admitEngine(spec *ActionSpec, payload rawjson.Value) (engine, path string, err error) {
	v, path := payload.Get("engine"), "engine"
	if spec.EnginePath == "filter.engine" {
		v, path = payload.Get("filter").Get("engine"), spec.EnginePath
	}
	if v.IsAbsent() {
		if spec.EngineRequired {
			return "", path, fault.Field(path, "is required")
		}
		return "", path, nil
	}
	engine, ok := v.Str()
	if !ok || !enginePattern.MatchString(engine) {
		return "", path, fault.Field(path, "must be a name of 1..40 letters, digits, '.', '_' or '-' that starts with a letter or digit")
	}
	return engine, path, nil
}

// admitInventory compares the command with what the agent reported.
func admitInventory(a *CommandAgent, spec *ActionSpec, engine string) error {
	if !slices.Contains(a.Engines, engine) {
		return admission(fault.Invalid, a, spec, engine, "engine_not_reported",
			"agent "+a.Name+" does not report the engine "+engine)
	}
	if spec.Capability != "" && !slices.Contains(a.Capabilities[engine], spec.Capability) {
		return admission(fault.Invalid, a, spec, engine, "capability_not_reported",
			"agent "+a.Name+" does not report "+spec.Capability+" for the engine "+engine)
	}
	if spec.RetryFamily && !slices.Contains(a.Capabilities[engine], retryByReference) {
		return admission(fault.Invalid, a, spec, engine, "retry_contract_not_reported",
			"agent "+a.Name+" does not report "+retryByReference+" for the engine "+engine)
	}
	return nil
}

// admission makes the error of a refused command with the details of agent protocol E.5.
func admission(code fault.Code, a *CommandAgent, spec *ActionSpec, engine, reason, text string) error {
	return fault.New(code, "%s", text).With("error", reason).With("engine", engine).With("action", spec.Name).
		With("agent_id", a.ID.String())
}
