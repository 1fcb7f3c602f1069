pub fn init(_module: &[u8]) {}
