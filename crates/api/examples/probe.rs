fn main(){
 let which = std::env::args().nth(1).unwrap();
 let schema: serde_json::Value = serde_json::from_str(&which).unwrap();
 let v = jsonschema::options().build(&schema);
 match v { Err(e)=> println!("build err at {}: {e}", e.instance_path()), Ok(v)=> { for e in v.iter_errors(&serde_json::json!({"a":{"b":"x"}})) {println!("{} {:?}: {e}", e.instance_path(), e.kind());} println!("done {}", v.is_valid(&serde_json::json!({"a":1}))); } }
}
